import hashlib
import os
import re
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import AuthRefused, BadAnswer, Cancelled, HashMismatch, NetworkFailed, NoSpace, NotOnServer
from stoker.core.events import Kinds
from stoker.core.frozen import changed
from stoker.transfer.download.types import DownloadTimeouts, Status
from stoker.transfer.hub.hub_cache import BlobChecker
from stoker.transfer.hub.listing import RepoFile, Revision
from stoker.transfer.hub.repository import RepoRequest, fetch_repository, first_cause
from tests.servers.hub import Answer, Asked, git_sha1, small_files
from tests.unit.transfer.real_hubs import FILES, LARGE, REPO, Scene, content, fetched, named, path_of, scenes


@pytest.fixture
def scene(tmp_path: Path):
    with scenes(tmp_path) as one:
        yield one


def statuses(outcomes) -> set[Status]:
    return {outcome.fetched.status for outcome in outcomes}


def test_every_file_of_a_repository_is_in_the_cache_by_its_digest_and_in_the_snapshot_by_its_name(scene: Scene):
    outcomes = scene.fetch()
    assert first_cause(outcomes) is None
    assert [path_of(outcome) for outcome in outcomes] == sorted(FILES)
    for path in FILES:
        link = scene.snapshot / path
        assert link.read_bytes() == content(path)
        assert link.is_symlink()
        assert not os.path.isabs(os.readlink(link))
    blobs = {entry.name for entry in (scene.repo_folder / "blobs").iterdir()}
    large = {hashlib.sha256(LARGE).hexdigest(), hashlib.sha256(b"tiny but large for git").hexdigest()}
    assert blobs == large | {git_sha1(content(path)) for path in FILES if isinstance(FILES[path], bytes)}
    assert (scene.repo_folder / "refs" / "main").read_text() == scene.commit


def test_an_outcome_tells_where_the_file_is_and_what_it_cost(scene: Scene):
    outcome = named(scene.fetch(), "model.bin")
    assert outcome.fetched is not None
    assert outcome.fetched.path == str(scene.snapshot / "model.bin")
    assert outcome.fetched.status is Status.DOWNLOADED
    assert outcome.fetched.bytes_from_network == len(LARGE)
    assert outcome.fetched.sha256 == hashlib.sha256(LARGE).hexdigest()
    assert outcome.fetched.commit == scene.commit
    assert "?" not in outcome.fetched.url


def test_a_second_fetch_sends_nothing_but_the_question_which_commit_it_is(scene: Scene):
    scene.fetch()
    scene.fake.asked.clear()
    outcomes = scene.fetch()
    assert statuses(outcomes) == {Status.CACHED}
    assert [one.target.split("?")[0] for one in scene.fake.asked] == ["/api/models/org/name/revision/main"]


def test_a_second_fetch_reads_no_byte_of_what_was_verified(scene: Scene, monkeypatch):
    scene.fetch()

    def read_again(*arguments):
        raise AssertionError(arguments)

    monkeypatch.setattr(BlobChecker, "_hashed", read_again)
    assert first_cause(scene.fetch()) is None


def test_equal_files_are_sent_once(scene: Scene):
    outcomes = scene.fetch()
    asked = scene.fake.asked_for("/resolve/", "GET")
    assert len(asked) == len(FILES) - 1
    assert fetched(outcomes, "nested/again.json").bytes_from_network + fetched(
        outcomes, "config.json"
    ).bytes_from_network == len(content("config.json"))


def test_a_branch_that_moves_in_the_middle_does_not_mix_two_commits(scene: Scene):
    newer = {path: (content(path) + b"!") for path in FILES}

    def move(asked: Asked, answer: Answer) -> Answer:
        if "/tree/" in asked.target:
            scene.fake.repository("org/name").commit(newer)
        return answer

    scene.fake.tamper = move
    outcomes = scene.fetch()
    assert first_cause(outcomes) is None
    assert {path: (scene.snapshot / path).read_bytes() for path in FILES} == {path: content(path) for path in FILES}
    assert all("/main/" not in one.target for one in scene.fake.asked_for("/resolve/"))


def test_one_missing_file_does_not_lose_the_others_and_the_ref_is_not_moved(scene: Scene):
    scene.fake.tamper = lambda asked, answer: (
        Answer(404, {"X-Error-Code": "EntryNotFound"}) if asked.target.endswith("config.json") else answer
    )
    outcomes = scene.fetch()
    failed = [outcome for outcome in outcomes if outcome.error is not None]
    # The same bytes under a second name: one blob, one fate.
    assert {path_of(outcome) for outcome in failed} == {"config.json", "nested/again.json"}
    assert isinstance(first_cause(outcomes), NotOnServer)
    assert (scene.snapshot / "model.bin").read_bytes() == LARGE
    assert not (scene.repo_folder / "refs" / "main").exists()
    scene.fake.tamper = None
    outcomes = scene.fetch()
    assert first_cause(outcomes) is None
    assert fetched(outcomes, "model.bin").status is Status.CACHED
    assert (scene.repo_folder / "refs" / "main").read_text() == scene.commit


def test_a_flipped_bit_in_a_small_file_never_gets_its_name(scene: Scene):
    def flip(asked: Asked, answer: Answer) -> Answer:
        if asked.target.endswith("notes.md") and answer.status == 200:
            answer.body = b"#" + bytes([answer.body[1] ^ 1]) + answer.body[2:]
        return answer

    scene.fake.tamper = flip
    outcomes = scene.fetch()
    assert isinstance(named(outcomes, "nested/deep/notes.md").error, HashMismatch)
    assert not (scene.snapshot / "nested/deep/notes.md").exists()
    assert git_sha1(content("nested/deep/notes.md")) not in os.listdir(scene.repo_folder / "blobs")
    assert first_cause([one for one in outcomes if path_of(one) != "nested/deep/notes.md"]) is None


def test_a_small_file_whose_connection_is_cut_is_fetched_by_the_engine(scene: Scene):
    cuts = iter([3])

    def cut(asked: Asked, answer: Answer) -> Answer:
        if asked.target.endswith("notes.md") and answer.status == 200:
            answer.cuts_at = next(cuts, None)
        return answer

    scene.fake.tamper = cut
    assert first_cause(scene.fetch()) is None
    assert (scene.snapshot / "nested/deep/notes.md").read_bytes() == content("nested/deep/notes.md")


def test_offline_everything_comes_from_the_cache_and_nothing_is_sent(scene: Scene):
    scene.fetch()
    scene.fake.asked.clear()
    outcomes = scene.fetch(scene.hub(offline=True))
    assert statuses(outcomes) == {Status.CACHED}
    assert [path_of(outcome) for outcome in outcomes] == sorted(FILES)
    assert scene.fake.asked == []


def test_offline_what_is_missing_or_damaged_is_told_file_by_file(scene: Scene):
    scene.fetch()
    os.unlink(scene.repo_folder / "blobs" / hashlib.sha256(LARGE).hexdigest())
    outcomes = scene.fetch(scene.hub(offline=True))
    assert isinstance(named(outcomes, "model.bin").error, NotOnServer)
    assert named(outcomes, "config.json").error is None


def test_offline_without_a_listing_the_snapshot_itself_says_what_there_is(scene: Scene):
    scene.fetch()
    os.unlink(scene.repo_folder / "trees" / f"{scene.commit}.json")
    outcomes = scene.fetch(scene.hub(offline=True))
    assert [path_of(outcome) for outcome in outcomes] == sorted(FILES)
    assert first_cause(outcomes) is None


def test_offline_a_repository_that_was_never_fetched_is_refused(scene: Scene):
    with pytest.raises(NotOnServer, match="not in the cache"):
        scene.fetch(scene.hub(offline=True))
    assert scene.fake.asked == []


def test_force_fetches_what_is_there_anew(scene: Scene):
    scene.fetch()
    scene.downloads()
    assert statuses(scene.fetch(force=True)) == {Status.DOWNLOADED, Status.LINKED}
    assert scene.downloads() > 0


def test_bad_names_are_refused_all_at_once_before_anything_is_written(scene: Scene):
    scene.fake.repository("org/name").commit({"../up": b"1", "a/CON": b"2", "x": b"3", "X": b"4", "good": b"5"})
    with pytest.raises(BadAnswer, match="3 unsafe names") as caught:
        scene.fetch()
    assert str(caught.value.data["faults"]).count(": ") == 3
    assert not scene.repo_folder.exists()


def test_a_bad_name_that_nobody_wants_harms_nobody(scene: Scene):
    scene.commit = scene.fake.repository("org/name").commit({"../up": b"1", "good": b"5"})
    hub = scene.hub()
    files = tuple(file for file in hub.files(REPO, scene.commit) if file.path == "good")
    assert first_cause(scene.fetch(hub, files=files)) is None


def test_what_can_not_fit_is_refused_before_anything_is_fetched(scene: Scene):
    hub = scene.hub()
    hub.tools = changed(hub.tools, free_bytes=lambda path: 50 * 1024 * 1024 + len(LARGE))
    with pytest.raises(NoSpace, match="no space for"):
        scene.fetch(hub)
    assert scene.downloads() == 0


@pytest.mark.parametrize(
    ("error_code", "hint"),
    [("GatedRepo", "accept its terms at http://.*/org/name, then set HF_TOKEN"), ("", "HF_TOKEN")],
)
def test_a_body_that_the_hub_refuses_is_explained_in_its_words(scene: Scene, error_code: str, hint: str):
    def refuse(asked: Asked, answer: Answer) -> Answer:
        return Answer(403, {"X-Error-Code": error_code}) if "/resolve/" in asked.target else answer

    scene.fake.tamper = refuse
    cause = first_cause(scene.fetch())
    assert isinstance(cause, AuthRefused)
    assert re.search(hint, cause.hint)


def test_being_stopped_is_the_outcome_of_everything_that_was_not_there_yet(scene: Scene):
    hub = scene.hub()
    files = hub.files(REPO, hub.resolve(REPO).commit)

    def stop(asked: Asked, answer: Answer) -> Answer:
        if "/resolve/" in asked.target:
            scene.stop.ask(Cancelled("stopped"))
        return answer

    scene.fake.tamper = stop
    revision = Revision(asked="main", commit=scene.commit)
    outcomes = fetch_repository(hub, RepoRequest(repo=REPO, revision=revision, files=files))
    assert {path_of(outcome) for outcome in outcomes} == set(FILES)
    assert isinstance(first_cause(outcomes), Cancelled)
    assert not (scene.repo_folder / "refs" / "main").exists()


def test_a_gated_repository_says_where_to_accept_its_terms_and_asks_no_more(scene: Scene):
    many = small_files(200, 10)
    repository = scene.fake.repository("org/name")
    repository.commit(many)
    repository.is_gated = True
    outcomes = scene.fetch(workers=2)
    cause = first_cause(outcomes)
    assert isinstance(cause, AuthRefused)
    assert len(outcomes) == 200
    # One handful a worker at most, each file of it asked for twice: plainly, then by the engine.
    assert len(scene.fake.asked_for("/resolve/")) <= 2 * 2 * 32


def test_a_network_that_is_gone_is_noticed_after_a_few_files(scene: Scene):
    hub = scene.hub()
    hub.patience = changed(hub.patience, attempts=1)
    scene.fake.repository("org/name").commit(small_files(300, 10))
    revision = hub.resolve(REPO)
    files = hub.files(REPO, revision.commit)

    def cut(asked: Asked, answer: Answer) -> Answer:
        answer.cuts_at = 0
        return answer

    scene.fake.tamper = cut
    scene.fake.asked.clear()
    outcomes = fetch_repository(hub, RepoRequest(repo=REPO, revision=revision, files=files, workers=2))
    assert isinstance(first_cause(outcomes), NetworkFailed)
    assert len(outcomes) == 300
    assert len(scene.fake.asked) < 300


def test_many_files_of_a_server_that_stays_away_are_waited_for_once_together(scene: Scene):
    hub, clock = scene.hub(), FakeClock()
    hub.patience, hub.tools = DownloadTimeouts(no_progress_s=120), changed(hub.tools, clock=clock)
    scene.fake.repository("org/name").commit(small_files(60, 10))
    revision = hub.resolve(REPO)
    files = hub.files(REPO, revision.commit)
    scene.fake.tamper = lambda asked, answer: Answer(503)
    outcomes = fetch_repository(hub, RepoRequest(repo=REPO, revision=revision, files=files, workers=1))
    assert len([one for one in outcomes if isinstance(one.error, NetworkFailed)]) == 60
    assert clock.monotonic_s() == pytest.approx(120.0)


def test_credentials_go_to_the_hub_and_never_to_where_it_leads(scene: Scene):
    assert first_cause(scene.fetch(scene.hub(token="secret"))) is None
    at_cdn = [one for one in scene.fake.asked if one.at_cdn]
    at_hub = [one for one in scene.fake.asked if not one.at_cdn]
    assert at_cdn
    assert all("authorization" not in one.headers for one in at_cdn)
    assert all(one.headers["authorization"] == "Bearer secret" for one in at_hub)


def test_a_mirror_without_listings_gives_files_by_name(scene: Scene):
    scene.fake.lists = False
    hub = scene.hub()
    assert hub.resolve(REPO) == Revision(asked="main", commit="")
    with pytest.raises(NotOnServer, match="lists no files"):
        hub.files(REPO, "main")
    found = [hub.file(REPO, "main", path) for path in ("config.json", "model.bin")]
    assert {commit for _, commit in found} == {scene.commit}
    revision = Revision(asked="main", commit=scene.commit)
    order = RepoRequest(repo=REPO, revision=revision, files=[file for file, _ in found])
    assert first_cause(fetch_repository(hub, order)) is None
    assert (scene.snapshot / "model.bin").read_bytes() == LARGE


def test_files_asked_for_by_name_are_of_one_commit_even_if_the_branch_moves(scene: Scene):
    scene.fake.lists = False
    hub = scene.hub()

    def move(asked: Asked, answer: Answer) -> Answer:
        scene.fake.repository("org/name").commit({"config.json": b"new", "empty.txt": b"new"})
        return answer

    scene.fake.tamper = move
    revision, files = hub.named_files(REPO, Revision(asked="main", commit=""), ["config.json", "empty.txt"])
    assert revision.commit == scene.commit
    assert [file.size_bytes for file in files] == [9, 0]


def test_a_digest_that_nobody_tells_keeps_a_file_out_of_the_cache(scene: Scene):
    order = RepoRequest(
        repo=REPO, revision=Revision(asked="main", commit=scene.commit), files=[RepoFile(path="a", size_bytes=1)]
    )
    with pytest.raises(BadAnswer, match="no digest"):
        fetch_repository(scene.hub(), order)


def test_each_file_is_announced_once_after_it_has_its_name(scene: Scene):
    seen = []

    def look(event):
        if event.kind == Kinds.DOWNLOAD_DONE:
            seen.append((event.fields["file"], os.path.exists(event.fields["path"])))

    hub = scene.hub()
    hub.tools = changed(hub.tools, say=look)
    scene.fetch(hub)
    assert sorted(seen) == [(f"org/name: {path}", True) for path in sorted(FILES)]


def test_receipts_are_kept_after_the_name_and_before_the_news(scene: Scene):
    story = []
    hub = scene.hub()
    hub.tools = changed(
        hub.tools,
        say=lambda event: story.append(("told", event.fields.get("path"))) if "done" in event.kind else None,
        keep=lambda came: story.extend(("kept", one.path) for _, one in came),
    )
    scene.fetch(hub)
    for path in FILES:
        name = str(scene.snapshot / path)
        assert story.index(("kept", name)) < story.index(("told", name))
    assert len(story) == 2 * len(FILES)
