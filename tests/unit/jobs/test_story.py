from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.journal import read_status
from stoker.jobs.job_history import HistoryCache, RunHistory, tell
from tests.unit.jobs.conftest import Office


def event(kind: str, node: str = "a", **more: Any) -> dict[str, Any]:
    return {"v": 1, "ts": 10.0, "seq": 1, "source": "s", "kind": kind, "node": node, **more}


def endings(story: RunHistory) -> dict[str, str]:
    return {name: node.ending for name, node in story.nodes.items()}


def test_the_life_of_a_node() -> None:
    story = RunHistory()
    begin = story.take(event("stage_begin", stage="x/y", why="it has not run before", key="k", attempt=1, changes=[]))
    assert begin is not None
    assert (begin.ending, begin.stage, begin.why, begin.began_s) == ("running", "x/y", "it has not run before", 10.0)
    story.take(event("stage_step", step=3, of=10, metrics={"loss": 0.5}))
    assert (begin.step, begin.of, begin.metrics) == (3, 10, {"loss": 0.5})
    story.take(event("stage_retrying", attempt=1, message="no luck"))
    assert (begin.ending, begin.message) == ("waiting", "attempt 1 failed: no luck")
    story.take(event("stage_begin", attempt=2, why="again"))
    story.take(event("stage_end", digest="d", seconds=1.5, peak_rss_bytes=7))
    assert (begin.ending, begin.digest, begin.seconds, begin.attempts) == ("ran", "d", 1.5, 2)
    assert begin.to_json()["peak_rss_bytes"] == 7


@pytest.mark.parametrize(
    ("told", "ending"),
    [
        (event("stage_skipped", key="k", digest="d"), "hit"),
        (event("stage_failed", cause="user", message="m"), "failed"),
        (event("stage_failed", cause="diverged", message="m"), "diverged"),
        (event("stage_pruned", because="b"), "pruned"),
        (event("stage_cancelled"), "cancelled"),
        (event("stage_waiting", why="process 7 works on it"), "waiting"),
        (event("stage_blocked", short_of=["gpu"]), "waiting"),
    ],
)
def test_how_a_node_ends(told: dict[str, Any], ending: str) -> None:
    assert endings(tell([told])) == {"a": ending}


def test_warnings_beyond_the_first_hundred_are_counted() -> None:
    story = tell([event("warning", message=f"no {number}") for number in range(130)])
    assert (len(story.warnings), story.dropped_warnings) == (100, 30)


def test_a_fan_out_ends_when_its_last_instance_does() -> None:
    story = RunHistory()
    story.take(event("stage_expanded", "train", count=2, stage="x/y"))
    assert endings(story) == {"train": "running"}
    story.take(event("stage_end", "train[0]"))
    assert story.nodes["train"].ending == "running"
    story.take(event("stage_skipped", "train[1]"))
    assert endings(story) == {"train": "ran", "train[0]": "ran", "train[1]": "hit"}
    assert story.nodes["train"].instances == 2


def test_a_fan_out_over_nothing_ends_at_once() -> None:
    assert endings(tell([event("stage_expanded", "train", count=0)])) == {"train": "hit"}


def test_a_fan_out_of_hits_is_one() -> None:
    events = [event("stage_expanded", "t", count=2), event("stage_skipped", "t[0]"), event("stage_skipped", "t[1]")]
    assert endings(tell(events))["t"] == "hit"


def test_a_fan_out_with_a_failure_is_pruned() -> None:
    events = [
        event("stage_expanded", "t", count=2),
        event("stage_failed", "t[0]", cause="user"),
        event("stage_pruned", "t", because="t[0]"),
        event("stage_end", "t[1]"),
    ]
    assert endings(tell(events)) == {"t": "pruned", "t[0]": "failed", "t[1]": "ran"}


@pytest.mark.parametrize(
    "odd",
    [{}, {"kind": "unheard"}, {"kind": "stage_end"}, {"node": 5}, event("unheard"), event("stage_begin", "x[", why=5)],
)
def test_odd_events_do_no_harm(odd: dict[str, Any]) -> None:
    story = tell([odd, event("stage_end")])
    assert story.nodes["a"].ending == "ran"


def test_the_story_of_a_real_run_agrees_with_its_result(office: Office) -> None:
    for recipe, texts in (
        ("test/fan", {}),
        ("test/sum", {}),
        ("test/go", {"how": "raise"}),
        ("test/go", {"how": "diverge"}),
    ):
        for _ in range(2):
            done = office.run(recipe, **texts)
            assert done.result is not None
            story = tell(read_status(done.folder.status_path))
            assert endings(story) == {name: str(node.ending) for name, node in done.result.nodes.items()}
            assert story.begin["kind"] == "run_begin"
            assert story.end["kind"] == "run_end"


def test_a_cached_history_reads_on_across_generations_and_garbage(tmp_path: Path) -> None:
    path, cache = tmp_path / "status.jsonl", HistoryCache()

    def seen() -> dict[str, str]:
        return cache.read(str(path), endings)

    def line(kind: str, node: str) -> bytes:
        return f'{{"kind": "{kind}", "node": "{node}"}}\n'.encode()

    assert seen() == {}
    path.write_bytes(line("stage_begin", "a") + b"garbage\n[1]\n" + b"[" * 3000 + b"\n" + b"x" * (3 << 20) + b"\n")
    assert seen() == {"a": "running"}
    with path.open("ab") as file:
        file.write(line("stage_end", "a") + line("stage_begin", "b")[:-3])
    assert seen() == {"a": "ran"}
    with path.open("ab") as file:
        file.write(line("stage_begin", "b")[-3:])
    path.rename(tmp_path / "status.1.jsonl")
    path.write_bytes(line("stage_begin", "c"))
    assert seen() == {"a": "ran", "b": "running", "c": "running"}
    path.write_bytes(b"")
    assert seen() == {}


def test_what_is_kept_of_a_journal_is_bounded_whatever_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.jobs.job_history._MOST_LONG_BYTES", 200_000)
    lines = [event("stage_begin", f"n{at}", why="x" * 50_000) for at in range(10)]
    many = {f"metric-{at}": at for at in range(700)}
    lines += [event("stage_step", "n0", step=step, metrics=many) for step in range(30)]
    lines += [event("stage_step", "n0", step=99, metrics={f"other-{at}": at for at in range(700)} | {"metric-3": 9})]
    path = tmp_path / "status.jsonl"
    path.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    nodes = HistoryCache().read(str(path), lambda story: dict(story.nodes))
    assert len([node for node in nodes.values() if node.why]) == 3
    # Steps are taken for ever: they replace what the ones before said.
    assert (nodes["n0"].step, len(nodes["n0"].metrics), nodes["n0"].metrics["metric-3"]) == (99, 1000, 9)
