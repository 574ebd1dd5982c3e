from __future__ import annotations

from stoker.cli.context import CliOutput
from stoker.cli.run_report import ProgressLines
from stoker.cli.screens import Running, Screen
from stoker.core.events import Event, Kinds
from stoker.views.trial_lines import SharedProcessRunView, Titles


class Paper(Screen):
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


def follow(
    *events: Event,
    titles: Titles = Titles(width=5),  # noqa: B008 - it is frozen
    shared: SharedProcessRunView | None = None,
) -> Paper:
    paper = Paper()
    out = CliOutput(is_json=False, is_quiet=False)
    out.is_unicode = True
    progress = ProgressLines(paper, out, titles, near="/work", shared=shared)
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
    assert paper.lines == ["= 30 stages cached"]


def test_what_runs_is_told_with_time_step_and_metrics() -> None:
    step = Event(Kinds.STAGE_STEP, {"node": "train", "step": 3, "of": 10, "metrics": {"loss": 0.123456, "lr": 1.0}})
    paper = follow(begin("train"), step)
    assert paper.running is not None
    assert paper.running(112.0, 0.0) == ["train     12s  step 3/10  loss 0.1235  lr 1"]
    assert paper.running(112.0, 60.0) == []


def waiting(why: str, waits_for: str) -> Event:
    return Event(Kinds.STAGE_WAITING, {"node": "train", "stage": "x", "why": why, "waits_for": waits_for, "place": 1})


def test_who_waits_for_a_device_says_for_which_and_keeps_saying_so() -> None:
    text = "waits for GPU-1: held by job mine/run (pid 7)"
    paper = follow(waiting(f"{text} for 4m00s", text))
    assert paper.lines == [f"~ train  {text} for 4m00s"]
    assert paper.running is not None
    assert paper.running(112.0, 5.0) == [f"train     12s  {text}"]
    assert paper.running(112.0, 60.0) == []


def test_who_waits_no_longer_runs_like_everybody() -> None:
    paper = follow(waiting("waits for a GPU for 1s", "waits for a GPU"), begin("train"))
    assert paper.running is not None
    assert paper.running(111.0, 0.0) == ["train     10s"]


def test_who_waits_for_another_process_says_so_and_keeps_saying_for_whom() -> None:
    why = "process 7 has been running it for 4s"
    fields: dict[str, object] = {"node": "train", "key": "k", "why": why, "waits_for": "waits for process 7"}
    paper = follow(Event(Kinds.STAGE_WAITING, fields))
    assert paper.lines == ["~ train  waits: process 7 has been running it for 4s"]
    assert paper.running is not None
    assert paper.running(112.0, 5.0) == ["train     12s  waits for process 7"]
    hit = Event(Kinds.STAGE_SKIPPED, {"node": "train", "stage": "x", "key": "k", "digest": "d"})
    paper = follow(Event(Kinds.STAGE_WAITING, fields), hit)
    assert paper.running is not None
    assert paper.running(112.0, 0.0) == []


def test_what_a_stage_took_of_its_device_is_told_at_its_end() -> None:
    fields = {"node": "train", "stage": "x", "seconds": 112.0, "metrics": {"loss": 0.5}}
    end = Event(Kinds.STAGE_END, {**fields, "peak_rss_bytes": 4 << 30, "peak_gpu_bytes": 6 << 30})
    assert follow(begin("train"), end).lines == ["✓ train   1m52s  ran  loss 0.5  peak 6.0 GiB GPU, 4.0 GiB RAM"]
    plain = Event(Kinds.STAGE_END, {**fields, "peak_rss_bytes": 4 << 30})
    assert follow(begin("train"), plain).lines == ["✓ train   1m52s  ran  loss 0.5"]


def step(number: int, of: int | None) -> Event:
    return Event(Kinds.STAGE_STEP, {"node": "train", "step": number, "of": of, "metrics": {}})


def test_how_quickly_it_goes_is_told_from_the_steps_that_were_heard_of() -> None:
    # It goes on from step 400, so what it has done by itself are 20 steps in 2 seconds.
    paper = follow(begin("train"), step(400, 500), step(410, 500), step(420, 500))
    assert paper.running is not None
    assert paper.running(112.0, 0.0) == ["train     12s  step 420/500  10 step/s  ETA 8.0s"]
    paper = follow(begin("train"), step(1, None), step(5, None))
    assert paper.running is not None
    assert paper.running(112.0, 0.0) == ["train     12s  step 5  4 step/s"]


def test_a_stage_that_is_tried_again_has_a_new_pace() -> None:
    again = Event(Kinds.STAGE_RETRYING, {"node": "train", "attempt": 1, "message": "no", "delay_s": 1.0})
    paper = follow(begin("train"), step(1, 10), step(9, 10), again, begin("train"), step(1, 10))
    assert paper.running is not None
    assert paper.running(112.0, 0.0) == ["train    8.0s  step 1/10"]


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
        "~ train  attempt 1 failed: OSError: no; retry in 2.0s",
        "✗ train   0.50s  failed: ValueError: no",
        "- page           skipped: needs train",
    ]


def test_damage_and_differences_are_warned_of() -> None:
    paper = follow(
        Event(Kinds.CACHE_CORRUPT, {"node": "load", "damage": "blob 12 is torn"}),
        Event(Kinds.CACHE_DIFFERS, {"node": "load", "expected": False, "ours": "a", "kept": "b"}),
        Event(Kinds.CACHE_DIFFERS, {"node": "load", "expected": True}),
    )
    assert paper.lines == [
        "! load   blob 12 is torn; quarantined, runs again",
        "! load   different result from the same inputs; the first one is kept",
    ]


SWEEP = Titles(names={"1.run": "x=1", "2.run": "x=2"}, of_trials=frozenset({"1.run", "2.run"}), width=4, job="mine")


def trial_end(number: int, *, is_kept: bool = False, state: str = "completed") -> Event:
    fields = {"trial": number, "label": f"x={number}", "state": state, "is_kept": is_kept, "metrics": {"loss": 0.5}}
    return Event(Kinds.TRIAL_END, fields)


RUN_END = Event(Kinds.RUN_END, {"state": "completed"})


def test_a_trial_is_told_of_once_by_its_own_end() -> None:
    ran = Event(Kinds.STAGE_END, {"node": "1.run", "stage": "x", "seconds": 1.0})
    assert follow(begin("1.run"), ran, trial_end(1), titles=SWEEP).lines == ["✓ x=1           loss 0.5"]


def test_a_few_trials_that_were_known_are_told_of_each_before_what_ran() -> None:
    paper = follow(trial_end(1, is_kept=True), begin("2.run"), trial_end(2), titles=SWEEP)
    assert [line.split()[:2] for line in paper.lines] == [["=", "x=1"], ["✓", "x=2"]]
    assert follow(trial_end(1, is_kept=True), titles=SWEEP).lines == []
    assert len(follow(trial_end(1, is_kept=True), RUN_END, titles=SWEEP).lines) == 1


def test_many_trials_that_were_known_are_one_line() -> None:
    kept = [trial_end(number, is_kept=True) for number in range(1200)]
    assert follow(*kept, RUN_END, titles=SWEEP).lines == ["= 1,200 trials cached"]


def test_a_failed_trial_is_told_of_as_that() -> None:
    (line,) = follow(trial_end(2, state="failed"), titles=SWEEP).lines
    assert line.startswith("✗ x=2")
    assert line.endswith("hint: stoker logs mine/2")


def test_members_of_a_shared_process_are_introduced_once_and_their_speed_is_told_together() -> None:
    names = {"1.train": "a", "2.train": "b"}
    titles = Titles(names=names, of_trials=frozenset(names), width=10, together=frozenset(names), trials=2)
    shared = SharedProcessRunView(lines=("2 adapters, one base",))
    steps = [Event(Kinds.STAGE_STEP, {"node": node, "step": 1, "metrics": {"tokens_per_s": 500.0}}) for node in names]
    diverged = {"label": "a", "state": "failed", "cause": "diverged", "message": "loss is nan", "trial": 1}
    paper = follow(
        begin("load"),
        begin("1.train"),
        begin("2.train"),
        *steps,
        Event(Kinds.TRIAL_END, diverged),
        titles=titles,
        shared=shared,
    )
    assert paper.lines == ["2 adapters, one base", "✗ a                   loss is nan, the other one unaffected"]
    assert paper.running is not None
    assert paper.running(110.0, 0.0)[0] == "2 together  1,000 tokens/s"
    kept = Event(Kinds.TRIAL_END, {"label": "b", "state": "completed", "is_kept": True, "trial": 2})
    assert follow(kept, begin("1.train"), Event(Kinds.TRIAL_END, diverged), titles=titles).lines[-1].endswith("is nan")


def told(name: str, text: str) -> Event:
    return Event(Kinds.STAGE_TOLD, {"node": name, "text": text})


def test_what_a_shared_process_tells_is_told_at_once_and_once_for_all_its_members() -> None:
    names = {"1.train": "a", "2.train": "b"}
    titles = Titles(names=names, of_trials=frozenset(names), width=1, together=frozenset(names), trials=2)
    said = [told(name, "compiling 38s (kept for next time)") for name in names]
    paper = follow(begin("1.train"), begin("2.train"), *said, titles=titles)
    assert paper.lines == ["compiling 38s (kept for next time)"]


def test_news_of_one_member_is_told_at_once_under_its_name_and_is_not_repeated_at_its_end() -> None:
    names = {"1.train": "a", "2.train": "b"}
    titles = Titles(names=names, of_trials=frozenset(names), width=1, together=frozenset(names), trials=2)
    said = [
        Event(Kinds.STAGE_TOLD, {"node": name, "text": "resumed after update 10 of 120", "at_once": True})
        for name in (*names, "train")
    ]
    paper = follow(begin("1.train"), begin("2.train"), *said[:2], titles=titles)
    assert paper.lines == ["  a  resumed after update 10 of 120", "  b  resumed after update 10 of 120"]
    end = Event(Kinds.STAGE_END, {"node": "train", "seconds": 2.0})
    assert follow(begin("train"), said[2], end).lines == [
        "  train  resumed after update 10 of 120",
        "✓ train    2.0s  ran",
    ]


def test_of_a_failure_that_lists_many_faults_the_line_has_the_first() -> None:
    faults = "3 lines of x are no examples:\nx:2: no JSON\nx:3: a number\nx:4: a number"
    failed = Event(Kinds.STAGE_FAILED, {"node": "read", "message": faults, "seconds": 2.0})
    (line,) = follow(begin("read"), failed).lines
    assert line.endswith("failed: 3 lines of x are no examples: x:2: no JSON …")


def test_what_a_stage_tells_stands_at_its_end_and_a_trials_own_at_once() -> None:
    end = Event(Kinds.STAGE_END, {"node": "read", "seconds": 2.0})
    assert follow(begin("read"), told("read", "5 examples"), end).lines == ["✓ read     2.0s  ran  5 examples"]
    titles = Titles(names={"1.read": "a read"}, of_trials=frozenset({"1.read"}), width=6, trials=2)
    assert follow(begin("1.read"), told("1.read", "5 examples"), titles=titles).lines == ["  a read  5 examples"]
