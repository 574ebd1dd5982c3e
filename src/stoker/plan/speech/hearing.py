"""From bytes that a program prints to what the run hears: progress, metrics, complaints.

Memory and time are bounded whatever is printed (`output_lines`). Pairs in ordinary output count only while the program
does not speak the contract itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stoker.model.clock import Clock
from stoker.plan.metrics.file import Source
from stoker.plan.reports import note_last
from stoker.plan.speech.checkpoint_keeping import CheckpointKeeper
from stoker.plan.speech.output_lines import OutputLines
from stoker.plan.speech.plain_steps import Steps
from stoker.plan.speech.trainer_lines import (
    LINE_BYTES,
    Done,
    Eval,
    GaveUp,
    Heartbeat,
    Metrics,
    Plain,
    Said,
    Saved,
    Step,
    parse_control,
    parse_line,
)
from stoker.plan.speech.trainer_talk import FAULTS_TOLD, Talk, eval_name

TELL_EVERY_S = 0.5
"""How often progress is told, at most: the journal has to keep more than one program's steps."""


class ProgramSpeech:
    """Hears one attempt's program."""

    def __init__(self, emit: Callable[[dict[str, Any]], None], clock: Clock, keeper: CheckpointKeeper) -> None:
        self._emit = emit
        self._keeper = keeper
        self._clock = clock
        self._talk = Talk()
        self._lines = OutputLines(clock)
        self._control_rest = b""
        self._steps = Steps()
        self._step = 0
        self._of: int | None = None
        self._untold: dict[str, float] = {}
        self._has_news = False
        self._next_told_s = clock.monotonic_s()

    @property
    def complaint(self) -> str:
        """What the program said it failed with, as its last word."""
        word = self._talk.last_word
        return (word.message or "it said that it failed") if isinstance(word, GaveUp) else ""

    def hear(self, data: bytes) -> None:
        """Take in what was printed; nothing, after a pause, is worth a call, too."""
        for line in self._lines.feed(data):
            self._hear_line(line)
        self._tell_progress()

    def hear_control(self, data: bytes) -> float | None:
        """Take in what was reported through the control file.

        Gives for how long the program's own code has then said nothing; `None` if nothing was reported.
        """
        *lines, self._control_rest = (self._control_rest + data).split(b"\n")
        quiet_s: float | None = None
        for line in lines:
            if line.strip():
                said = parse_control(line)
                self._tell(said, self._talk.hear_control(said), is_kept=True)
                quiet_s = max(0.0, said.quiet_s or 0.0) if isinstance(said, Heartbeat) else 0.0
        if len(self._control_rest) > LINE_BYTES:
            self._control_rest = b""
        return quiet_s

    def finish(self) -> None:
        """Take in a last line that has no end, and say what was left out."""
        for line in self._lines.finish():
            self._hear_line(line)
        self._tell_progress(even_early=True)
        self._keeper.close()
        if self._talk.faults > FAULTS_TOLD:
            self._emit({"log": f"trainer contract: and {self._talk.faults - FAULTS_TOLD} more lines that were wrong"})
        if self._talk.lost:
            self._emit(
                {"log": f"{self._talk.lost} values were dropped by the program: it measured faster than it could write"}
            )
        if self._lines.lost:
            self._emit({"log": f"{self._lines.lost} lines of its output came too quickly to be read for metrics"})

    def _hear_line(self, line: bytes) -> None:
        said = parse_line(line)
        self._tell(said, self._talk.hear(said), is_kept=False)

    def _tell(self, said: Said, fault: str | None, *, is_kept: bool) -> None:
        if fault is not None:
            if fault:
                self._emit({"log": f"trainer contract: {fault}"})
            return
        match said:
            case Step(step=step, of=of, metrics=metrics):
                self._report(self._steps.place(step), of, metrics, is_kept=is_kept)
            case Eval(step=step, metrics=metrics) if metrics:
                named = {eval_name(name): value for name, value in metrics.items()}
                self._report(self._steps.place(step), None, named, is_kept=is_kept)
            case Done(metrics=metrics) if metrics:
                self._report(self._steps.place(None), None, metrics, is_kept=is_kept)
            case Saved() if not is_kept:
                self._keeper.keep(said)
            case Metrics(step=step, values=values):
                self._report(self._steps.place(step), None, values, is_kept=False)
            case Plain() if not self._talk.speaks:
                self._report_plain(said)

    def _report_plain(self, said: Plain) -> None:
        if said.values:
            place = self._steps.place_plain(said)
            self._report(place, said.of, said.values, is_kept=False, source=Source.STDOUT)
        elif said.step is not None:
            self._report(said.step, said.of, {}, is_kept=False)

    def _report(
        self,
        step: int,
        of: int | None,
        metrics: Mapping[str, float],
        *,
        is_kept: bool,
        source: Source = Source.REPORTED,
    ) -> None:
        if metrics and not is_kept:
            self._emit({"row": step, "metrics": metrics, "source": source})
        self._step = step
        self._of = of if of is not None else self._of
        note_last(self._untold, metrics)
        self._has_news = True
        self._tell_progress()

    def _tell_progress(self, *, even_early: bool = False) -> None:
        """Say where the program stands, if that has changed and was not said just now: curves have every value."""
        now_s = self._clock.monotonic_s()
        if self._has_news and (even_early or now_s >= self._next_told_s):
            self._next_told_s = now_s + TELL_EVERY_S
            self._has_news = False
            metrics, self._untold = self._untold, {}
            self._emit({"step": self._step, "of": self._of, "metrics": metrics, "is_kept": True})
