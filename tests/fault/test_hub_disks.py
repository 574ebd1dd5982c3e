"""Full, read-only and separate disks, and processes killed at any moment, under a hub's cache."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from stoker.core.errors import NoSpace
from stoker.core.frozen import changed
from stoker.host.resources import free_bytes
from stoker.transfer.download.types import Status
from stoker.transfer.hub.repository import first_cause
from tests.servers.hub import FakeHub, Served, small_files
from tests.unit.host.real_mounts import small_disk
from tests.unit.transfer.real_hubs import FILES, LARGE, REPO, Scene, content, scenes

FETCH = """
import sys
from pathlib import Path
from tests.unit.transfer.real_hubs import client_of, REPO
from stoker.transfer.hub.repository import RepoRequest, fetch_repository
endpoint, folder = sys.argv[1:]
with client_of(endpoint, Path(folder)) as hub:
    revision = hub.resolve(REPO)
    files = hub.files(REPO, revision.commit)
    print("go", flush=True)
    fetch_repository(hub, RepoRequest(repo=REPO, revision=revision, files=files, workers=4))
"""


@pytest.fixture
def scene(tmp_path: Path):
    with scenes(tmp_path) as one:
        yield one


def statuses(outcomes) -> set[Status]:
    return {outcome.fetched.status for outcome in outcomes}


def test_a_folder_on_another_disk_gets_files_of_its_own_and_copies_of_the_caches(scene: Scene, tmp_path: Path):
    with small_disk(tmp_path / "disk", "size=80m") as disk:
        first = str(disk / "first")
        assert statuses(scene.fetch(out=first)) == {Status.DOWNLOADED}
        assert not (scene.repo_folder / "blobs").exists()
        scene.fetch()
        scene.downloads()
        second = str(disk / "second")
        assert statuses(scene.fetch(out=second)) == {Status.LINKED}
        assert scene.downloads() == 0
        for path in FILES:
            for folder in (first, second):
                assert Path(folder, path).read_bytes() == content(path)
                assert os.stat(f"{folder}/{path}").st_mode & 0o200


def test_a_cache_that_can_not_be_written_serves_what_it_has(scene: Scene, tmp_path: Path):
    with small_disk(tmp_path / "disk", "size=80m") as disk:
        hub = scene.hub(cache=str(disk / "hub"))
        assert first_cause(scene.fetch(hub)) is None
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        scene.downloads()
        hub = scene.hub(cache=str(disk / "hub"))
        assert statuses(scene.fetch(hub)) == {Status.CACHED}
        assert statuses(scene.fetch(scene.hub(cache=str(disk / "hub"), offline=True))) == {Status.CACHED}
        assert scene.downloads() == 0


def test_a_disk_that_is_too_small_is_noticed_before_anything_is_fetched(scene: Scene, tmp_path: Path):
    with small_disk(tmp_path / "disk", "size=20m") as disk:
        with pytest.raises(NoSpace):
            scene.fetch(scene.hub(cache=str(disk / "hub")))
        assert scene.downloads() == 0


@pytest.mark.parametrize("size", ["300k", "900k", "3m"])
def test_a_disk_that_fills_up_meanwhile_leaves_no_wrong_file_and_a_later_run_finishes(
    scene: Scene, tmp_path: Path, size: str
):
    files: dict[str, bytes | Served] = {**small_files(100, 20_000), "model.bin": Served(LARGE, is_large=True)}
    scene.commit = scene.fake.repository("org/name").commit(files)
    with small_disk(tmp_path / "disk", f"size={size}") as disk:
        hub = scene.hub(cache=str(disk / "hub"))
        # Somebody else takes the space after we looked.
        hub.tools = changed(hub.tools, free_bytes=lambda path: 1 << 40)
        outcomes = scene.fetch(hub)
        assert isinstance(first_cause(outcomes), NoSpace)
        snapshot = disk / "hub" / "models--org--name" / "snapshots" / scene.commit
        for path, file in files.items():
            if (snapshot / path).exists():
                assert (snapshot / path).read_bytes() == (file.data if isinstance(file, Served) else file)
        assert not (disk / "hub" / "models--org--name" / "refs").exists()
        subprocess.run(["mount", "-o", "remount,size=80m", str(disk)], check=True)
        hub.tools = changed(hub.tools, free_bytes=free_bytes)
        assert first_cause(scene.fetch(hub)) is None
        assert all((snapshot / path).exists() for path in files)


def test_a_process_killed_at_any_moment_leaves_whole_files_only_and_the_next_one_finishes(tmp_path: Path):
    files: dict[str, bytes | Served] = {**small_files(150, 3000), "model.bin": Served(LARGE * 3, is_large=True)}
    random = Random(5)
    with FakeHub() as fake:
        commit = fake.repository("org/name").commit(files)
        repo_folder = tmp_path / "hub" / REPO.folder
        words = [sys.executable, "-c", FETCH, fake.endpoint, str(tmp_path)]
        checkout = Path(__file__).parents[2]
        for _ in range(6):
            process = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=checkout)
            assert process.stdout is not None
            process.stdout.readline()
            try:
                process.wait(random.uniform(0.0, 0.25))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
            check_whole(repo_folder, commit, files)
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, cwd=checkout)
        assert process.wait() == 0
        check_whole(repo_folder, commit, files)
        assert (repo_folder / "refs" / "main").read_text() == commit


def check_whole(repo_folder: Path, commit: str, files: dict[str, bytes | Served]) -> None:
    """Every name stands for the right bytes; the ref only where all names are there."""
    snapshot = repo_folder / "snapshots" / commit
    for path, file in files.items():
        if os.path.lexists(snapshot / path):
            assert (snapshot / path).read_bytes() == (file.data if isinstance(file, Served) else file), path
    if (repo_folder / "refs" / "main").exists():
        assert all((snapshot / path).exists() for path in files)
