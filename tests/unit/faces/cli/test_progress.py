from __future__ import annotations

from stoker.faces.cli.output import Output
from stoker.faces.cli.progress import Progress, Running
from stoker.model.events import Event, Kinds


class Paper:
    """A screen that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.running: Running | None = None

    def begin(self, running: Running) -> None:
        self.running = running

    def lasting(self, line: str) -> None:
        self.lines.append(line)

    def close(self) -> None:
        return


def follow(*events: Event) -> Paper:
    paper = Paper()
    out = Output(is_json=False, is_quiet=False)
    out.is_unicode = True
    progress = Progress(paper, out, ["load", "train"])
    for number, event in enumerate(events):
        progress.take(event, 100.0 + number, number)
    return paper


def hit(name: str) -> Event:
    return Event(Kinds.STAGE_SKIPPED, {"node": name, "stage": "x"})


def begin(name: str) -> Event:
    return Event(Kinds.STAGE_BEGIN, {"node": name, "stage": "x", "attempt": 1})


def test_hits_are_held_back_until_something_runs() -> None:
    assert follow(hit("load"), hit("train")).lines == []
    assert follow(hit("load"), begin("train")).lines == ["= load           hit"]


def test_many_hits_are_one_line() -> None:
    paper = follow(*(hit(f"load-{number}") for number in range(30)), begin("train"))
    assert paper.lines == ["= 30 stages were known"]


def test_what_runs_is_told_with_time_step_and_metrics() -> None:
    step = Event(Kinds.STAGE_STEP, {"node": "train", "step": 3, "of": 10, "metrics": {"loss": 0.123456, "lr": 1.0}})
    paper = follow(begin("train"), step)
    assert paper.running is not None
    assert paper.running(112.0, 0.0) == ["train     12s  step 3/10  loss 0.1235  lr 1"]
    assert paper.running(112.0, 60.0) == []


def test_each_end_has_its_line() -> None:
    paper = follow(
        begin("load"),
        Event(Kinds.STAGE_END, {"node": "load", "stage": "x", "seconds": 3.21}),
        begin("train"),
        Event(Kinds.STAGE_RETRYING, {"node": "train", "attempt": 1, "message": "OSError: no", "delay_s": 2.0}),
        begin("train"),
        Event(Kinds.STAGE_FAILED, {"node": "train", "cause": "user", "message": "ValueError: no", "seconds": 0.5}),
        Event(Kinds.STAGE_PRUNED, {"node": "page", "stage": "x", "because": "train"}),
    )
    assert paper.lines == [
        "✓ load     3.2s  ran",
        "~ train  attempt 1 failed: OSError: no; again in 2.0s",
        "✗ train   0.50s  failed: ValueError: no",
        "- page           left out: needs train",
    ]


def test_damage_and_differences_are_warned_of() -> None:
    paper = follow(
        Event(Kinds.CACHE_CORRUPT, {"node": "load", "damage": "blob 12 is torn"}),
        Event(Kinds.CACHE_DIFFERS, {"node": "load", "expected": False, "ours": "a", "kept": "b"}),
        Event(Kinds.CACHE_DIFFERS, {"node": "load", "expected": True}),
    )
    assert paper.lines == [
        "! load   blob 12 is torn; set aside, made again",
        "! load   gave another result than before from the same inputs; the first one is kept",
    ]
