"""From bytes that a program prints to what the run hears: progress, metrics, complaints.

Memory and time are bounded whatever is printed. Pairs in ordinary output count only while the program
does not speak the contract itself.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from stoker.core.clock import Clock
from stoker.core.text import lazy_pattern, one_line
from stoker.engine.metrics.attempt_metrics import note_last
from stoker.engine.metrics.metric_names import EPOCH
from stoker.engine.metrics.metrics_file import MetricSource
from stoker.engine.metrics.printed import NOTHING, PrintedLine, PrintedMetrics, may_say
from stoker.engine.metrics.written import WrittenMetrics
from stoker.engine.runners.program.found_checkpoints import LOOK_EVERY_S, CheckpointFinder
from stoker.engine.runners.program.trainer_lines import (
    FAULTS_TOLD,
    LINE_BYTES,
    Eval,
    Heartbeat,
    Metrics,
    OutputSteps,
    TrainerCheckpoint,
    TrainerCompletion,
    TrainerFailure,
    TrainerLine,
    TrainerParser,
    TrainerStep,
    eval_name,
    parse_control,
    parse_line,
)

WINDOW_S = 0.5
LINES_PER_WINDOW = 4000
CONTROLS_PER_WINDOW = 1000
_READING_SHARE = 10.0
"""Lines are read for at most a tenth of the time."""
_LEAST_LINES_PER_WINDOW = 100
"""So many are read however long that takes: a program that prints a line per epoch loses none on a busy machine."""
_LONG_LINE_BYTES = 256
"""A longer line counts as several."""
_NUMBER_OR_JSON = lazy_pattern(rb"[0-9{]")
_LAST_BYTES = LINE_BYTES
_LOOK_SHARE = 20.0
"""Between two looks for checkpoints there is at least so many times the time that the last one took."""
_CHECKPOINT_SHARE = 10.0
"""How many times as long as keeping a found checkpoint takes, none is kept after it."""
_CONTROLS = (b'"saved"', b'"done"', b'"failed"', b'"contract"')


class OutputLines:
    """Takes output in chunks of any size, from one thread; returns the lines worth reading, in bounded memory and time.

    A carriage return ends a line as a line end does, so each update of a progress bar is one. Lines without a number,
    JSON and columns say nothing and are not given. Of a line longer than `LINE_BYTES` only the beginning is given. In
    each half second only so many lines are given; the rest is counted as lost, except for the last one with a number,
    so that the final value is always right. Lines that may control something (`saved`, `done`, `failed`) have room of
    their own.
    """

    def __init__(self, clock: Clock, *, lines_per_window: int = LINES_PER_WINDOW) -> None:
        self.lost = 0
        """Lines that were not given, because too many had something to say."""
        self._clock = clock
        self._lines_per_window = lines_per_window
        self._window_end_s = -1.0
        self._left = 0.0
        self._spent_s = 0.0
        """How long reading the lines of this window has taken."""
        self._is_slow = False
        """That is too long, and only the least number of lines is read in this window."""
        self._controls_left = 0
        self._tail = b""
        """The beginning of a line whose end has not come."""
        self._is_cut = False
        """That line is too long already: what follows up to its end is not looked at."""
        self._unread = b""
        """The last line that was passed over."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take what was printed next, or nothing after a pause; gives the lines to read now, in order."""
        given = self._begin_window()
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r", b"\n")
        head, newline, rest = chunk.partition(b"\n")
        self._grow(head)
        if newline:
            given += self._choose(self._end_line())
            body, _, last = rest.rpartition(b"\n")
            given += self._choose(body)
            self._grow(last)
        return given

    def spent(self, seconds: float) -> None:
        """Take in the processor time that reading took: after much of it fewer are read, so that no program waits."""
        self._spent_s += seconds
        if self._spent_s > WINDOW_S / _READING_SHARE:
            if not self._is_slow:
                self._is_slow = True
                self._left -= max(0, self._lines_per_window - _LEAST_LINES_PER_WINDOW)
            self._window_end_s = max(self._window_end_s, self._clock.monotonic_s() + _READING_SHARE * self._spent_s)

    def finish(self) -> list[bytes]:
        """Return the last line, which had no end, and the last one that was passed over."""
        self._window_end_s = -1.0
        return [*self._begin_window(), *self._choose(self._end_line())]

    def _begin_window(self) -> list[bytes]:
        now_s = self._clock.monotonic_s()
        if now_s < self._window_end_s:
            return []
        self._window_end_s = now_s + WINDOW_S
        self._spent_s = 0.0
        self._is_slow = False
        self._left, self._controls_left = self._lines_per_window, CONTROLS_PER_WINDOW
        if not self._unread:
            return []
        line, self._unread = self._unread, b""
        self.lost -= 1
        return self._choose(line)

    def _grow(self, part: bytes) -> None:
        if not self._is_cut:
            self._tail += part[: LINE_BYTES + 1 - len(self._tail)]
            self._is_cut = len(self._tail) > LINE_BYTES

    def _end_line(self) -> bytes:
        line, self._tail, self._is_cut = self._tail, b"", False
        return line

    def _choose(self, body: bytes) -> list[bytes]:
        # Most output says nothing to us; then its lines are not even taken apart.
        if b"{" not in body and not may_say(body):
            return []
        if self._left <= 0:
            return self._pass_over(body)
        lines = [line for line in body.split(b"\n") if b"{" in line or may_say(line)]
        for at, line in enumerate(lines):
            if self._left <= 0:
                return [*lines[:at], *self._pass_over(b"\n".join(lines[at:]))]
            self._left -= 1 + len(line) // _LONG_LINE_BYTES
        return lines

    def _pass_over(self, body: bytes) -> list[bytes]:
        """Leave lines out, except for those that may control something, and remember the last one."""
        self.lost += body.count(b"\n") + 1
        last = body[-_LAST_BYTES:].split(b"\n")
        self._unread = next((line for line in reversed(last) if _NUMBER_OR_JSON.search(line)), self._unread)
        if self._controls_left <= 0 or not any(kind in body for kind in _CONTROLS):
            return []
        controls = [line for line in body.split(b"\n") if b"{" in line and any(kind in line for kind in _CONTROLS)]
        given = controls[: self._controls_left]
        self._controls_left -= len(given)
        self.lost -= len(given)
        if given and given[-1] == self._unread:
            self._unread = b""
        return given


CLOSE_S = 60.0
_ROOM_LEFT_BYTES = 256 << 20


class ProgramCheckpointStore:
    """Keeps what one attempt's program reports to have saved; `tell` gets a line about what could not be kept.

    A thread does it, since hashing takes as long as reading: the program and its listener continue meanwhile. A file
    that is changed while it is being kept is not named. Only the newest report waits; one that a newer one overtakes is
    reported as such.
    """

    def __init__(
        self,
        *,
        folder: str,
        scratch: str,
        resume_key: str,
        tell: Callable[[str], None],
        acting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Make it; `acting` gives the block in which files are read and written."""
        self._folder = folder
        self._scratch = scratch
        self._resume_key = resume_key
        self._tell = tell
        self._acting = acting
        self._turn = threading.Condition()
        self._waiting: TrainerCheckpoint | None = None
        self.took_s = 0.0
        """How long it took to keep the last one."""
        self._is_over = False
        self._thread: threading.Thread | None = None

    def keep(self, saved: TrainerCheckpoint) -> None:
        """Take a report in; returns at once."""
        with self._turn:
            overtaken, self._waiting = self._waiting, saved
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stoker-checkpoints", daemon=True)
                self._thread.start()
            self._turn.notify()
        if overtaken is not None and not overtaken.place:
            self._tell(f"checkpoint {overtaken.path} is not stored: a newer one replaced it")

    def has_room(self, size_bytes: int) -> bool:
        """Return True if a copy of so many bytes leaves as much for the program to write."""
        try:
            free = os.statvfs(self._scratch)
        except OSError:
            return False
        return free.f_bavail * free.f_frsize >= 2 * size_bytes + _ROOM_LEFT_BYTES

    @property
    def is_busy(self) -> bool:
        """True while one waits to be kept."""
        return self._waiting is not None

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Wait until everything is kept."""
        with self._turn:
            self._is_over = True
            self._turn.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                self._tell(f"its last checkpoint was not stored within {timeout_s:g} s")

    def _run(self) -> None:
        # Part of the users' side, and imported by ours for this alone: one rule, in one place.
        from stoker.trainer.stoker_trainer import keep_checkpoint  # noqa: PLC0415 - only for programs that save so

        while True:
            with self._turn:
                while self._waiting is None and not self._is_over:
                    self._turn.wait()
                saved, self._waiting = self._waiting, None
            if saved is None:
                return
            begun_s = time.monotonic()
            try:
                path = os.path.abspath(os.path.join(self._folder, saved.path))
                with self._acting():
                    keep_checkpoint(path, saved.step, self._scratch, self._resume_key, saved.place)
            except (OSError, ValueError, RecursionError) as error:
                if saved.place and getattr(error, "errno", None) in (None, errno.ENOENT):
                    # The program wrote over it or removed it meanwhile, and the next look finds what it has then.
                    continue
                self._tell(f"checkpoint {one_line(saved.path)} is not kept: {error}")
            finally:
                self.took_s = time.monotonic() - begun_s


TELL_EVERY_S = 0.5
"""How often progress is reported, at most: the journal has to keep more than one program's steps."""


class ProgramOutput:
    """Hears one attempt's program."""

    def __init__(
        self,
        emit: Callable[[dict[str, Any]], None],
        clock: Clock,
        checkpoints: ProgramCheckpointStore,
        metrics: Sequence[str] = (),
        written: WrittenMetrics | None = None,
        finder: CheckpointFinder | None = None,
    ) -> None:
        """Make it; `metrics` are those of `Program`, `written` reads its files, `finder` looks for its checkpoints."""
        self._finder = finder
        self._next_found_s = clock.monotonic_s() + LOOK_EVERY_S
        self._emit = emit
        self._checkpoints = checkpoints
        self._clock = clock
        self._written = written
        self._talk = TrainerParser()
        self._streams = {is_out: OutputLines(clock) for is_out in (True, False)}
        # One for both: the names of a table's columns may be on the other stream.
        self._printed = PrintedMetrics(metrics, lambda text: emit({"log": text}))
        self._control_rest = b""
        self._steps = OutputSteps()
        self._step = 0
        self._has_step = False
        """Its output had something to say: then its files don't say how far it is."""
        self._reported: set[str] = set()
        """Names of metrics that it reports itself."""
        self._in_files: set[str] = set()
        """Names of metrics that are in its files."""
        self._of: int | None = None
        self._untold: dict[str, float] = {}
        self._has_news = False
        self._next_told_s = clock.monotonic_s()

    @property
    def complaint(self) -> str:
        """What the program said it failed with, as its last word."""
        word = self._talk.last_word
        return (word.message or "it reported a failure") if isinstance(word, TrainerFailure) else ""

    def hear(self, data: bytes, *, is_out: bool) -> None:
        """Take in what was printed to one of the two streams."""
        lines = self._streams[is_out]
        given = lines.feed(data)
        if given:
            # Processor time: on a busy machine waiting for the processor is no reading.
            begun_s = time.thread_time()
            self._hear_lines(given, is_out=is_out)
            lines.spent(time.thread_time() - begun_s)

    def look(self) -> None:
        """Take in what was passed over in a flood of lines that has paused, and what it wrote to files."""
        for is_out in self._streams:
            self.hear(b"", is_out=is_out)
        if self._written is not None:
            self._take_written(self._written.look())
        now_s = self._clock.monotonic_s()
        if self._finder is not None:
            self._finder.beat()
        if now_s >= self._next_found_s and not self._checkpoints.is_busy:
            self._keep_found()
            look_s = self._clock.monotonic_s() - now_s
            rest_s = max(LOOK_EVERY_S, _CHECKPOINT_SHARE * self._checkpoints.took_s, _LOOK_SHARE * look_s)
            self._next_found_s = now_s + rest_s

    def _keep_found(self) -> None:
        """Keep the newest checkpoint that the program wrote, unless it reports them itself."""
        if self._finder is None:
            return
        try:
            found = self._finder.look()
        except Exception as error:  # noqa: BLE001 - whatever lies in its folders, the program is not to blame for it
            self._finder = None
            self._emit({"log": f"its checkpoints are no longer looked for: {type(error).__name__}: {error}"})
            return
        if found is None:
            return
        if self._checkpoints.has_room(found.size_bytes):
            self._checkpoints.keep(TrainerCheckpoint(path=found.path, step=found.step, place=found.place))
        else:
            self._finder = None
            self._emit({"log": f"checkpoint {found.path} is not kept: less than twice its size is free on the disk"})

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

    def finish(self, *, is_success: bool = False) -> None:
        """Take in a last line that has no end, and say what was left out. After a success no checkpoint is needed."""
        for is_out, lines in self._streams.items():
            self._hear_lines(lines.finish(), is_out=is_out)
        if self._written is not None:
            for rows in self._written.rest():
                self._take_written(rows)
        self._tell_progress(even_early=True)
        if not is_success:
            self._keep_found()
        self._checkpoints.close()
        if self._talk.faults > FAULTS_TOLD:
            self._emit({"log": f"trainer contract: and {self._talk.faults - FAULTS_TOLD} more invalid lines"})
        if self._talk.lost:
            self._emit(
                {"log": f"{self._talk.lost} values were dropped by the program: it measured faster than it could write"}
            )
        lost = sum(lines.lost for lines in self._streams.values())
        if lost:
            self._emit({"log": f"{lost} lines of its output came too quickly to be read for metrics"})

    def _hear_lines(self, lines: list[bytes], *, is_out: bool) -> None:
        for line in lines:
            # The contract is for standard output: whatever else writes to the other stream can't break it.
            said = parse_line(line, self._printed) if is_out else self._printed.read(line)
            if said is not NOTHING:
                self._tell(said, self._talk.hear(said), is_kept=False)
        self._tell_progress()

    def _tell(self, said: TrainerLine, fault: str | None, *, is_kept: bool) -> None:
        if fault is not None:
            if fault:
                self._emit({"log": f"trainer contract: {fault}"})
            return
        match said:
            case TrainerStep(step=step, of=of, metrics=metrics):
                self._report(self._steps.place(step), of, metrics, is_kept=is_kept)
            case Eval(step=step, metrics=metrics) if metrics:
                named = {eval_name(name): value for name, value in metrics.items()}
                self._report(self._steps.place(step), None, named, is_kept=is_kept)
            case TrainerCompletion(metrics=metrics) if metrics:
                self._report(self._steps.place(None), None, metrics, is_kept=is_kept)
            case TrainerCheckpoint():
                self._finder = None
                if not is_kept:
                    self._checkpoints.keep(said)
            case Metrics(step=step, values=values):
                self._report(self._steps.place(step), None, values, is_kept=False)
            case PrintedLine() if not self._talk.speaks:
                self._report_plain(said)

    def _report_plain(self, line: PrintedLine) -> None:
        place = self._steps.place_plain(line)
        if place is None:
            return
        # A file has more digits, and its own steps.
        values = {name: value for name, value in line.values.items() if name not in self._in_files}
        if values and line.is_bar and self._steps.epoch is not None:
            # Keras names it in a line of its own.
            values.setdefault(EPOCH, float(self._steps.epoch))
        self._report(*place, values, is_kept=False, source=MetricSource.STDOUT)

    def _report(
        self,
        step: int,
        of: int | None,
        metrics: Mapping[str, float],
        *,
        is_kept: bool,
        source: MetricSource = MetricSource.REPORTED,
    ) -> None:
        if metrics and not is_kept:
            self._emit({"row": step, "metrics": metrics, "source": source})
        if source is MetricSource.REPORTED:
            self._reported.update(metrics)
        self._step = step
        self._has_step = True
        self._of = of if of is not None else self._of
        note_last(self._untold, metrics)
        self._has_news = True
        self._tell_progress()

    def _take_written(self, rows: Sequence[tuple[int, dict[str, float]]]) -> None:
        for step, values in rows:
            metrics = {name: value for name, value in values.items() if name not in self._reported}
            if not metrics:
                continue
            self._emit({"row": step, "metrics": metrics, "source": MetricSource.REPORTED})
            self._in_files.update(metrics)
            note_last(self._untold, metrics)
            self._has_news = True
            if not self._has_step:
                self._step = max(self._step, step)
        self._tell_progress()

    def _tell_progress(self, *, even_early: bool = False) -> None:
        """Report the program's step, if it changed and was not reported just now: curves have every value."""
        now_s = self._clock.monotonic_s()
        if self._has_news and (even_early or now_s >= self._next_told_s):
            self._next_told_s = now_s + TELL_EVERY_S
            self._has_news = False
            metrics, self._untold = self._untold, {}
            self._emit({"step": self._step, "of": self._of, "metrics": metrics, "is_kept": True})
