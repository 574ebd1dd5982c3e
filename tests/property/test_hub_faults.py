"""A hub that misbehaves at random: whatever it answers, a name stands for the right bytes or is not there."""

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.frozen import changed
from stoker.transfer.hub.repository import RepoRequest, fetch_repository, first_cause
from tests.lengths import examples
from tests.servers.hub import Answer, Asked, Served
from tests.unit.transfer.real_hubs import FILES, REPO, Scene, content, path_of, scenes

FAULTS = st.sampled_from(
    ["none", "none", "flip", "cut", "longer", "shorter", "401", "404", "500", "html", "empty", "gzip"]
)


def spoil(fault: str, answer: Answer) -> Answer:
    if fault.isdigit():
        return Answer(int(fault))
    body = answer.body
    if fault == "flip" and body:
        answer.body = bytes([body[0] ^ 1]) + body[1:]
    elif fault == "cut":
        answer.cuts_at = len(body) // 2
    elif fault == "longer":
        answer.body = body + b"x"
    elif fault == "shorter":
        answer.body = body[:-1]
    elif fault == "html":
        return Answer(200, {"Content-Type": "text/html"}, b"<html>log in</html>")
    elif fault == "empty":
        answer.body = b""
    elif fault == "gzip":
        answer.headers["Content-Encoding"] = "gzip"
    return answer


def check(scene: Scene) -> None:
    for path in FILES:
        if (scene.snapshot / path).exists():
            assert (scene.snapshot / path).read_bytes() == content(path), path
    if (scene.repo_folder / "refs" / "main").exists():
        assert all((scene.snapshot / path).exists() for path in FILES)


@settings(max_examples=examples(6, 12), deadline=None)
@given(st.lists(FAULTS, min_size=1, max_size=12), st.integers(1, 4))
def test_whatever_a_hub_answers_a_name_stands_for_the_right_bytes_or_is_not_there(faults: list[str], workers: int):
    with tempfile.TemporaryDirectory() as folder, scenes(Path(folder)) as scene:
        hub = scene.hub()
        hub.patience = changed(hub.patience, attempts=1)
        revision = hub.resolve(REPO)
        order = RepoRequest(repo=REPO, revision=revision, files=hub.files(REPO, revision.commit), workers=workers)
        left = iter(faults)

        def tamper(asked: Asked, answer: Answer) -> Answer:
            return spoil(next(left, "none"), answer)

        scene.fake.tamper = tamper
        outcomes = fetch_repository(hub, order)
        check(scene)
        for outcome in outcomes:
            assert (outcome.error is None) == (scene.snapshot / path_of(outcome)).exists()
        scene.fake.tamper = None
        hub.patience = changed(hub.patience, attempts=3)
        assert first_cause(fetch_repository(hub, order)) is None
        check(scene)
        assert (scene.repo_folder / "refs" / "main").read_text() == scene.commit


@settings(max_examples=examples(6, 12), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(FILES)), st.sampled_from(["flip", "short", "gone"])), max_size=4))
def test_whatever_happens_to_blobs_between_two_fetches_the_second_puts_it_right(damages: list[tuple[str, str]]):
    with tempfile.TemporaryDirectory() as folder, scenes(Path(folder)) as scene:
        scene.fetch()
        for path, damage in damages:
            file = FILES[path]
            blob = scene.repo_folder / "blobs" / (file if isinstance(file, Served) else Served(file)).tag
            if not blob.exists():
                continue
            data = blob.read_bytes()
            blob.unlink()
            if damage != "gone":
                blob.write_bytes(data[:-1] if damage == "short" or not data else data[:-1] + b"\0")
        assert first_cause(scene.fetch()) is None
        for path in FILES:
            assert (scene.snapshot / path).read_bytes() == content(path)
