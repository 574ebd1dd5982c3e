from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.core.clock import FakeClock
from stoker.core.digests import Digest
from stoker.engine.metrics.attempt_metrics import LAST_KEPT
from stoker.engine.metrics.metrics_file import MetricSource
from stoker.engine.metrics.written import LOOK_EVERY_S, WrittenMetrics
from stoker.engine.runners.program.output import LINES_PER_WINDOW, ProgramCheckpointStore, ProgramOutput
from stoker.engine.scratch import choose_checkpoint

KEY = Digest("a" * 64)


class Heard:
    """What a run hears of a program."""

    def __init__(self, folder: Path, report_s: float = 0.0) -> None:
        self.report_s = report_s
        """How long a report takes, while others have the processor."""
        self.folder = folder
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.reports: list[dict[str, Any]] = []
        keeper = ProgramCheckpointStore(
            folder=str(folder),
            scratch=str(self.scratch),
            resume_key=KEY,
            tell=lambda text: self.reports.append({"log": text}),
        )
        self.clock = FakeClock()
        self.out = folder / "out"
        self.out.mkdir()
        written = WrittenMetrics([str(self.out)], [], self.clock, log=lambda text: self.reports.append({"log": text}))
        self.speech = ProgramOutput(self.take, self.clock, keeper, written=written)

    def take(self, report: dict[str, Any]) -> None:
        self.clock.advance(self.report_s)
        self.reports.append(report)

    @property
    def rows(self) -> list[tuple[int, dict[str, float], MetricSource]]:
        """What is for the curves."""
        return [(one["row"], one["metrics"], one["source"]) for one in self.reports if "row" in one]

    @property
    def steps(self) -> list[tuple[int, int | None, dict[str, float]]]:
        """What is told while it runs."""
        return [(one["step"], one["of"], one["metrics"]) for one in self.reports if "step" in one]

    @property
    def log(self) -> list[str]:
        return [one["log"] for one in self.reports if "log" in one]


@pytest.fixture
def heard(tmp_path: Path) -> Heard:
    return Heard(tmp_path)


def test_pairs_are_reported_as_read_off_the_output(heard: Heard) -> None:
    heard.speech.hear(
        b"epoch=0 step=0 loss=2\nepoch=0 acc=1\nepoch=1 step=0 loss=1\nnothing to say\nacc=3", is_out=True
    )
    heard.speech.finish()
    assert heard.rows == [
        (0, {"epoch": 0.0, "loss": 2.0}, MetricSource.STDOUT),
        (0, {"acc": 1.0}, MetricSource.STDOUT),
        (1, {"epoch": 1.0, "loss": 1.0}, MetricSource.STDOUT),
        (1, {"acc": 3.0}, MetricSource.STDOUT),
    ]


def test_values_in_files_are_reported_and_go_before_those_on_the_output(heard: Heard) -> None:
    heard.speech.hear(b"step 1: acc 0.2, val loss 0.51\n", is_out=True)
    (heard.out / "metrics.csv").write_text("step,val_loss\n100,0.5123\n")
    heard.clock.advance(LOOK_EVERY_S)
    heard.speech.look()
    heard.speech.hear(b"step 2: acc 0.3, val loss 0.49\n", is_out=True)
    heard.speech.finish()
    assert heard.rows == [
        (1, {"val_loss": 0.51, "acc": 0.2}, MetricSource.STDOUT),
        (100, {"val_loss": 0.5123}, MetricSource.REPORTED),
        (2, {"acc": 0.3}, MetricSource.STDOUT),
    ]
    last: dict[str, float] = {}
    for _, _, metrics in heard.steps:
        last |= metrics
    assert last == {"val_loss": 0.5123, "acc": 0.3}
    assert [step for step, _, _ in heard.steps] == [1, 1, 2]


def test_steps_in_files_are_progress_if_the_output_says_nothing(heard: Heard) -> None:
    (heard.out / "metrics.csv").write_text("step,val_loss\n100,0.5\n200,0.25\n")
    heard.speech.finish()
    assert heard.steps == [(200, None, {"val_loss": 0.25})]


def test_what_the_contract_reports_is_not_taken_from_files(heard: Heard) -> None:
    heard.speech.hear(b'{"kind":"step","step":3,"metrics":{"val_loss":0.5}}\n', is_out=True)
    (heard.out / "metrics.csv").write_text("epoch,val_loss,acc\n1,0.25,0.75\n")
    heard.speech.finish()
    assert [row[:2] for row in heard.rows] == [(3, {"val_loss": 0.5}), (1, {"acc": 0.75})]


def test_lines_of_the_contract_are_reported_as_such(heard: Heard) -> None:
    heard.speech.hear(
        b'{"kind":"step","step":3,"of":9,"metrics":{"loss":1}}\n{"kind":"eval","metrics":{"loss":2}}\n', is_out=True
    )
    heard.speech.hear(b'{"kind":"heartbeat"}\n{"kind":"done","metrics":{"loss":0.5}}\nloss=99\n', is_out=True)
    assert heard.rows == [
        (3, {"loss": 1.0}, MetricSource.REPORTED),
        (3, {"eval/loss": 2.0}, MetricSource.REPORTED),
        (3, {"loss": 0.5}, MetricSource.REPORTED),
    ]


def test_what_comes_through_the_control_file_is_kept_already(heard: Heard) -> None:
    heard.speech.hear_control(b'{"kind":"step","step":1,"metrics":{"loss":1}}\n{"kind":"st')
    heard.speech.hear_control(b'ep","step":2}\n')
    heard.speech.hear(b"loss=5\nstoker-metric: extra=5\n", is_out=True)
    heard.speech.finish()
    assert heard.rows == [(2, {"extra": 5.0}, MetricSource.REPORTED)]
    assert heard.steps == [(1, None, {"loss": 1.0}), (2, None, {"extra": 5.0})]


def test_progress_is_told_at_once_then_now_and_then_and_at_last_always(heard: Heard) -> None:
    for step in range(100):
        heard.speech.hear(b"step=%d/100 loss=%d\n" % (step, step), is_out=True)
        heard.clock.advance(0.01)
    heard.speech.hear(b"acc=7\n", is_out=True)
    heard.speech.finish()
    assert heard.steps == [
        (0, 100, {"loss": 0.0}),
        (50, 100, {"loss": 50.0}),
        (99, 100, {"loss": 99.0, "acc": 7.0}),
    ]
    assert len(heard.rows) == 101


def test_progress_that_waits_is_told_in_a_pause(heard: Heard) -> None:
    heard.speech.hear(b"step=1 loss=1\n", is_out=True)
    heard.speech.hear(b"step=2 loss=2\n", is_out=True)
    heard.clock.advance(0.5)
    heard.speech.look()
    assert [step for step, _, _ in heard.steps] == [1, 2]
    heard.clock.advance(0.5)
    heard.speech.look()
    assert len(heard.steps) == 2


def test_however_many_names_there_are_a_told_step_holds_some(heard: Heard) -> None:
    heard.speech.hear(b"".join(b"step=1 m%d=1\n" % name for name in range(3000)), is_out=True)
    heard.speech.finish()
    assert all(len(metrics) <= LAST_KEPT for _, _, metrics in heard.steps)
    assert len(heard.rows) == 3000


def test_the_control_file_tells_for_how_long_the_programs_own_code_was_quiet(heard: Heard) -> None:
    assert heard.speech.hear_control(b"") is None
    assert heard.speech.hear_control(b'{"kind":"step","step":1}\n') == 0.0
    assert heard.speech.hear_control(b'{"kind":"heartbeat","quiet_s":40.5}\n') == 40.5
    assert heard.speech.hear_control(b'{"kind":"heartbeat"}\n') == 0.0
    assert heard.speech.hear_control(b'{"kind":"heartbeat","quiet_s":-3}\n') == 0.0


def test_faults_go_to_the_log_and_not_endlessly(heard: Heard) -> None:
    heard.speech.hear(b'{"kind":"done"}\n' + b'{"kind":"done"}\n' * 100, is_out=True)
    assert heard.log == ["trainer contract: done after the last word, which was done"] * 20


def test_the_last_word_of_a_program_that_failed_is_its_complaint(heard: Heard) -> None:
    assert heard.speech.complaint == ""
    heard.speech.hear(b'{"kind":"failed","message":"no data"}\n', is_out=True)
    assert heard.speech.complaint == "no data"


def test_a_flood_is_told_and_its_last_line_is_heard(heard: Heard) -> None:
    heard.speech.hear(b"".join(b"step=%d loss=1\n" % step for step in range(LINES_PER_WINDOW + 101)), is_out=True)
    heard.speech.finish()
    assert heard.steps[-1][0] == heard.rows[-1][0] == LINES_PER_WINDOW + 100
    assert heard.log == ["100 lines of its output came too quickly to be read for metrics"]


def test_a_busy_machine_costs_a_program_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.engine.runners.program.output.time.thread_time", lambda: 0.0)
    heard = Heard(tmp_path, report_s=30.0)
    heard.speech.hear(b"epoch=0 loss=1\n", is_out=True)
    heard.report_s = 0.0
    for epoch in range(1, 400):
        heard.clock.advance(0.1)
        heard.speech.hear(b"epoch=%d loss=1\n" % epoch, is_out=True)
    heard.speech.finish()
    assert [step for step, _, _ in heard.rows] == list(range(400))
    assert heard.log == []


def test_a_step_without_a_value_is_progress(heard: Heard) -> None:
    heard.speech.hear(b"step=3/9\n", is_out=True)
    assert heard.steps == [(3, 9, {})]
    assert heard.rows == []


def test_a_checkpoint_that_is_reported_in_a_line_is_kept(heard: Heard) -> None:
    (heard.folder / "ckpt.bin").write_bytes(b"weights")
    heard.speech.hear(b'{"kind":"saved","path":"ckpt.bin","step":7}\n', is_out=True)
    heard.speech.finish()
    (heard.folder / "ckpt.bin").write_bytes(b"torn")
    checkpoint = choose_checkpoint(str(heard.scratch), KEY).checkpoint
    assert checkpoint is not None
    assert checkpoint.step == 7
    assert Path(checkpoint.path).read_bytes() == b"weights"
    assert heard.log == []


def test_one_that_is_not_there_is_told(heard: Heard) -> None:
    heard.speech.hear(b'{"kind":"saved","path":"none.bin"}\n', is_out=True)
    heard.speech.finish()
    assert heard.log == ["checkpoint none.bin is not kept: there is nothing in it"]
    assert choose_checkpoint(str(heard.scratch), KEY).checkpoint is None


def test_of_many_at_once_the_newest_is_kept_and_the_others_are_told(heard: Heard) -> None:
    for number in range(20):
        (heard.folder / f"{number}.bin").write_bytes(b"%d" % number)
    heard.speech.hear(
        b"".join(b'{"kind":"saved","path":"%d.bin","step":%d}\n' % (n, n) for n in range(20)), is_out=True
    )
    heard.speech.finish()
    checkpoint = choose_checkpoint(str(heard.scratch), KEY).checkpoint
    assert checkpoint is not None
    assert checkpoint.step == 19
    assert all("a newer one replaced it" in line for line in heard.log)


def test_what_the_trainer_has_kept_itself_is_not_kept_again(heard: Heard) -> None:
    (heard.folder / "ckpt.bin").write_bytes(b"weights")
    heard.speech.hear_control(b'{"kind":"saved","path":"ckpt.bin","step":7}\n')
    heard.speech.finish()
    assert not list(heard.scratch.iterdir())
