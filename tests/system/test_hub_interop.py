"""The real client of the hub and we, on one cache: each finds what the other fetched, and neither breaks the other."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stoker.transfer.download.types import Status
from stoker.transfer.hub.hub_cache import HubCache, UnfinishedDownload
from stoker.transfer.hub.repository import first_cause
from tests.servers.hub import Answer, Asked, Served, small_files
from tests.unit.transfer.real_hubs import FILES, LARGE, Scene, content, fetched, scenes

LARGE_SHA = Served(LARGE).sha256
SCRIPT = """
import json, os, sys
import huggingface_hub as hub
what, *arguments = sys.argv[1:]
if what == "offline":
    path = hub.snapshot_download("org/name", local_files_only=True)
    one = hub.try_to_load_from_cache("org/name", "nested/deep/notes.md")
    scan = hub.scan_cache_dir()
    listed = sorted(file.path for file in hub.get_cached_repo_tree("org/name"))
    repos = [[repo.repo_id, repo.nb_files, [sorted(rev.refs) for rev in repo.revisions]] for repo in scan.repos]
    answer = {"path": path, "one": one, "warnings": [str(w) for w in scan.warnings], "repos": repos, "listed": listed}
elif what == "download":
    answer = {"path": hub.snapshot_download("org/name", revision=arguments[0])}
elif what == "share":
    from huggingface_hub.utils._shared_blobs import publish_blob_to_shared_store as publish
    size = os.path.getsize(arguments[0])
    cache = os.environ["HF_HUB_CACHE"]
    answer = {"done": publish(blob_path=arguments[0], xet_hash="ab" * 32, cache_dir=cache, expected_size=size)}
elif what == "verify":
    checked = hub.HfApi().verify_repo_checksums("org/name")
    answer = {"mismatches": [str(one) for one in checked.mismatches], "missing": list(checked.missing_paths)}
print(json.dumps(answer))
"""


@pytest.fixture
def scene(tmp_path: Path):
    with scenes(tmp_path) as one:
        yield one


def environment(scene: Scene, **more: str) -> dict[str, str]:
    names = ("PATH", "HOME", "LANG", "TMPDIR")
    return {
        **{name: os.environ[name] for name in names if name in os.environ},
        "HF_HUB_CACHE": str(scene.cache),
        "HF_HOME": str(scene.folder / "hf"),
        "HF_ENDPOINT": scene.fake.endpoint,
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_XET": "1",
        **more,
    }


def client(scene: Scene, *words: str, **more: str) -> dict:
    """Run the hub's own client in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words],
        env=environment(scene, **more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_client_finds_offline_what_we_fetched_and_has_nothing_to_complain_about(scene: Scene):
    assert first_cause(scene.fetch()) is None
    scene.fake.asked.clear()
    found = client(scene, "offline", HF_HUB_OFFLINE="1")
    assert found["path"] == str(scene.snapshot)
    assert found["one"] == str(scene.snapshot / "nested/deep/notes.md")
    assert found["warnings"] == []
    assert found["repos"] == [["org/name", len(FILES) - 1, [["main"]]]]
    assert found["listed"] == sorted(FILES)
    assert scene.fake.asked == []


def test_the_clients_own_verification_agrees_with_ours(scene: Scene):
    scene.fetch()
    assert client(scene, "verify") == {"mismatches": [], "missing": []}


def test_the_client_downloads_nothing_that_we_have(scene: Scene):
    scene.fetch()
    scene.fake.asked.clear()
    assert client(scene, "download", "main")["path"] == str(scene.snapshot)
    assert scene.downloads() == 0


def test_we_download_nothing_that_the_client_has(scene: Scene):
    client(scene, "download", "main")
    assert scene.downloads() > 0
    outcomes = scene.fetch()
    assert {one.fetched.status for one in outcomes if one.fetched} == {Status.CACHED}
    assert scene.downloads() == 0
    # Not even a listing: the client's own note of it is read.
    assert scene.fake.asked_for("/tree/") == []


def test_a_file_that_the_client_got_wrong_is_fetched_anew_for_both(scene: Scene):
    def flip(asked: Asked, answer: Answer) -> Answer:
        if asked.at_cdn and answer.status == 200 and len(answer.body) == len(LARGE):
            answer.body = answer.body[:-1] + b"\0"
        return answer

    scene.fake.tamper = flip
    client(scene, "download", "main")
    assert (scene.snapshot / "model.bin").read_bytes() != LARGE
    scene.fake.tamper = None
    outcomes = scene.fetch()
    assert fetched(outcomes, "model.bin").status is Status.DOWNLOADED
    assert (scene.snapshot / "model.bin").read_bytes() == LARGE
    assert client(scene, "verify") == {"mismatches": [], "missing": []}


def test_the_command_of_the_client_works_on_what_we_fetched(scene: Scene):
    scene.fetch()
    words = [str(Path(sys.executable).with_name("hf")), "download", "org/name", "config.json"]
    done = subprocess.run(
        words, env=environment(scene, HF_HUB_OFFLINE="1"), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(scene.snapshot / "config.json") in done.stdout


def test_an_older_snapshot_stays_whole_when_a_newer_one_comes(scene: Scene):
    scene.fetch()
    older = scene.snapshot
    scene.commit = scene.fake.repository("org/name").commit({**FILES, "config.json": b"{}"})
    assert first_cause(scene.fetch()) is None
    assert (older / "config.json").read_bytes() == content("config.json")
    assert (scene.snapshot / "config.json").read_bytes() == b"{}"
    found = client(scene, "offline", HF_HUB_OFFLINE="1")
    assert found["path"] == str(scene.snapshot)
    assert found["warnings"] == []


def test_both_at_once_end_with_one_whole_repository(scene: Scene):
    files: dict[str, bytes | Served] = {**small_files(60, 2000), "model.bin": Served(LARGE * 4, is_large=True)}
    scene.commit = scene.fake.repository("org/name").commit(files)
    ends: list[dict] = []
    others = [threading.Thread(target=lambda: ends.append(client(scene, "download", "main"))) for _ in range(2)]
    for other in others:
        other.start()
    scene.fake.asked.clear()
    outcomes = scene.fetch()
    for other in others:
        other.join()
    assert first_cause(outcomes) is None
    assert [end["path"] for end in ends] == [str(scene.snapshot)] * 2
    for path, file in files.items():
        assert (scene.snapshot / path).read_bytes() == (file.data if isinstance(file, Served) else file)
    blobs = os.listdir(scene.repo_folder / "blobs")
    assert sorted(blobs) == sorted({file.tag for file in map(as_served, files.values())})


def as_served(file: bytes | Served) -> Served:
    return file if isinstance(file, Served) else Served(file)


def test_a_blob_that_the_client_moved_into_its_shared_store_is_read_there(scene: Scene):
    client(scene, "download", "main")
    blob = scene.repo_folder / "blobs" / LARGE_SHA
    assert client(scene, "share", str(blob))["done"]
    assert blob.is_symlink()
    scene.downloads()
    assert fetched(scene.fetch(), "model.bin").status is Status.CACHED
    assert scene.downloads() == 0
    assert blob.is_symlink()
    assert client(scene, "offline", HF_HUB_OFFLINE="1")["warnings"] == []


def test_what_the_client_left_unfinished_is_listed_and_left_alone(scene: Scene):
    blobs = scene.repo_folder / "blobs"
    blobs.mkdir(parents=True)
    (blobs / "abc.1234abcd.incomplete").write_bytes(b"12345")
    scene.fetch()
    left = UnfinishedDownload(paths=(str(blobs / "abc.1234abcd.incomplete"),), size_bytes=5, is_foreign=True)
    assert HubCache(str(scene.cache)).partials() == [left]


def test_a_client_that_waits_for_our_lock_finds_the_file_then(scene: Scene):
    """We hold the lock of the large file while its body comes; the client waits and downloads it no second time."""
    waiting = threading.Event()
    began = threading.Event()

    def hold(asked: Asked, answer: Answer) -> Answer:
        if asked.at_cdn and asked.method == "GET":
            began.set()
            waiting.wait(20)
        return answer

    scene.fake.tamper = hold
    ours: list = []
    fetching = threading.Thread(target=lambda: ours.append(scene.fetch()))
    fetching.start()
    assert began.wait(20)
    theirs: list[dict] = []
    other = threading.Thread(target=lambda: theirs.append(client(scene, "download", "main")))
    other.start()
    while not any("hf_hub" in one.headers["user-agent"] for one in scene.fake.asked_for("model.bin", "HEAD")):
        waiting.wait(0.01)
    waiting.set()
    fetching.join()
    other.join()
    assert first_cause(ours[0]) is None
    assert theirs[0]["path"] == str(scene.snapshot)
    large = [one for one in scene.fake.asked if one.at_cdn and one.method == "GET" and LARGE_SHA in one.target]
    assert len(large) == 1
