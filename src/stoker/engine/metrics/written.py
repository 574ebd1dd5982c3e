"""Metrics in files that a program writes, read while they grow.

TensorBoard event files, CSV of Lightning, Ultralytics, Keras and the like, Hugging Face's `trainer_state.json`, W&B's
offline folders and MLflow's file store (`written_formats` reads them) are found by their names in the program's output
folders, or where the user says. What was there before the attempt is not read, only what is added to it.

The program owns all of it, so anything may be found there. Nothing here waits, raises or follows a link; entries,
bytes, rows, time and memory are bounded. A fault is logged once for each file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

from stoker.core.clock import Clock
from stoker.core.errors import StokerError
from stoker.core.text import format_size
from stoker.engine.metrics.metric_names import NO_METRICS, normal_name
from stoker.engine.metrics.metrics_file import clean_name
from stoker.host.folders import BoundedWalk

if TYPE_CHECKING:
    from stoker.engine.metrics.written_formats import MetricReader, WrittenRow

LOOK_EVERY_S = 2.0
_LEAST_REST = 20
"""Between two looks there is at least so many times the time that the last one took."""
_LOOK_S = 0.05
_LOOK_BYTES = 1 << 20
_LAST_S = 5.0
_LAST_BYTES = 64 << 20
_WHOLE_BYTES = 8 << 20
"""A file that has to be read as a whole is not larger."""
_ENTRIES = 50_000
_DEPTH = 8
_FILES = 1000
_NAMES = 4096
_NAME_CHARACTERS = 1000
_FAULTS = 20
_COMPARED_BYTES = 64

_CSV_NAMES = frozenset({"metrics.csv", "results.csv", "progress.csv", "log.csv", "history.csv"})
"""Names that loggers give to their tables. Any other table has to be named by the user."""
_NO_METRICS = frozenset({
    "", *NO_METRICS, "time", "times", "timestamp", "wall_time", "walltime", "runtime", "hp_metric",
})  # fmt: skip
"""Of a name, behind the last `/`: places and times. `hp_metric` is a constant of Lightning."""
_NO_METRICS_BEGIN = ("_", "system/", "time/")
"""W&B's and TensorBoard's own names, MLflow's measurements of the machine, times of Stable-Baselines."""


class WrittenMetrics:
    """The files of one attempt. Make it before the program starts; not thread-safe."""

    def __init__(
        self,
        folders: Sequence[str],
        named: Sequence[str],
        clock: Clock,
        *,
        log: Callable[[str], None],
        acting: Callable[[], AbstractContextManager[None]] = nullcontext,
        resumes: bool = False,
    ) -> None:
        """Note what is there; `named` are files and folders that the user named.

        `acting` returns the block in which files are read. An attempt that `resumes` reads files that grow from their
        beginning: their steps say which values are its own.
        """
        self._clock = clock
        self._log = log
        self._acting = acting
        self._roots: dict[str, bool] = {}
        self._files: dict[str, _MetricFile] = {}
        self._grown: dict[str, _MetricFile] = {}
        """Files with something to read."""
        self._histories: dict[str, list[int]] = {}
        self._curves: dict[tuple[str, str], str] = {}
        """Format and spelling → name of the curve; empty if it is none."""
        self._formats: dict[str, str] = {}
        """Name of a curve → the format that gave it first: in another one its steps may be others."""
        self._faulty: set[str] = set()
        """Paths with a fault, and faults that are of no path."""
        self._unlogged: list[str] = []
        self._next_s = clock.monotonic_s() + LOOK_EVERY_S
        if acting is not nullcontext:
            # Another user may not be allowed to read the modules of this Python.
            from stoker.engine.metrics import written_formats  # noqa: F401, PLC0415
        try:
            with acting():
                for path in (*folders, *named):
                    self._roots[os.path.realpath(path)] = path in named
                self._find()
                for file in self._grown.values():
                    file.begin_behind(is_read=resumes)
        except (OSError, StokerError, ValueError) as error:
            # A path may hold a zero byte.
            self._note(str(error))
        self._grown.clear()

    def look(self) -> list[WrittenRow]:
        """Return what was written since the last look, with the names of curves; nothing if that was just now."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            return []
        rows = self._read(_LOOK_BYTES, now_s + _LOOK_S)
        took_s = self._clock.monotonic_s() - now_s
        self._next_s = now_s + max(LOOK_EVERY_S, took_s * _LEAST_REST)
        return rows

    def rest(self) -> Iterator[list[WrittenRow]]:
        """Return all that is left, up to a bound; for when the program has ended."""
        until_s = self._clock.monotonic_s() + _LAST_S
        for _ in range(_LAST_BYTES // _LOOK_BYTES):
            yield self._read(_LOOK_BYTES, until_s)
            if not self._grown or self._clock.monotonic_s() >= until_s:
                break
        for root, is_named in self._roots.items():
            if is_named and not any(f"{path}/".startswith(os.path.join(root, "")) for path in self._files):
                self._note("no file with metrics was found there", root)
        for path, file in self._grown.items():
            self._note(f"{format_size(file.unread_bytes)} came too quickly to be read for metrics", path)
        self._log_faults()

    def _read(self, most_bytes: int, until_s: float) -> list[WrittenRow]:
        rows: list[WrittenRow] = []
        try:
            with self._acting():
                self._find()
                # Of two values at one step the later counts.
                self._grown = dict(sorted(self._grown.items(), key=lambda item: item[1].seen[2]))
                while self._grown and most_bytes > 0 and self._clock.monotonic_s() < until_s:
                    # Each gets its turn: a file that grows quickly does not keep others from being read.
                    path = next(iter(self._grown))
                    file = self._grown.pop(path)
                    most_bytes -= file.read()
                    rows += self._named(file.reader)
                    if file.reader.fault:
                        self._note(file.reader.fault, path)
                    if file.has_more:
                        self._grown[path] = file
        except (OSError, StokerError) as error:
            self._note(str(error))
        self._log_faults()
        return rows

    def _named(self, reader: MetricReader) -> list[WrittenRow]:
        read, reader.rows = reader.rows, []
        rows = []
        for step, values in read:
            named = {}
            for spelt, value in values.items():
                name = self._curves.get((reader.format_name, spelt))
                if name is None:
                    name = self._curve_of(reader.format_name, spelt[:_NAME_CHARACTERS])
                if name:
                    named[name] = value
            if named:
                rows.append((step, named))
        return rows

    def _curve_of(self, format_name: str, spelt: str) -> str:
        """Return the name of the curve of a metric; empty if it is none."""
        if len(self._curves) >= _NAMES:
            self._note(f"more than {_NAMES:,} names; further ones are not read")
            return ""
        name = ""
        if not spelt.startswith(_NO_METRICS_BEGIN) and spelt.lower().rsplit("/", 1)[-1] not in _NO_METRICS:
            name = clean_name(normal_name(spelt))
            if self._formats.setdefault(name, format_name) != format_name:
                name = ""
        self._curves[format_name, spelt] = name
        return name

    def _find(self) -> None:
        """Look for files that are new or have changed."""
        for path in list(self._files):
            # However many others there are.
            with suppress(OSError):
                self._note_file(path, os.lstat(path), is_named=False)
        walk = BoundedWalk(_ENTRIES, deepest=_DEPTH)
        for root, is_named in self._roots.items():
            try:
                info = os.lstat(root)
            except OSError:
                continue
            if not stat.S_ISDIR(info.st_mode):
                if is_named or _is_metric_file(os.path.basename(root)):
                    self._note_file(root, info, is_named=is_named)
                continue
            for entry in walk.entries(root, enters=lambda entry: not entry.name.startswith(".")):
                is_file = not entry.is_dir(follow_symlinks=False)
                if is_file and (_is_metric_file(entry.name) or _mlflow_name(entry.path)):
                    with suppress(OSError):
                        self._note_file(entry.path, entry.stat(follow_symlinks=False), is_named=False)
        if not walk.left:
            self._note(f"more than {_ENTRIES:,} files and folders; not all were searched")

    def _note_file(self, path: str, info: os.stat_result, *, is_named: bool) -> None:
        if not stat.S_ISREG(info.st_mode):
            self._note("it is not a regular file", path)
            return
        file = self._files.get(path)
        if file is None:
            reader = _reader_for(path, self._histories, is_named=is_named)
            if reader is None:
                self._note("its name is none of a known format", path)
                return
            if len(self._files) >= _FILES:
                self._note(f"more than {_FILES:,} files; further ones are not read")
                return
            file = self._files[path] = _MetricFile(path, reader)
        seen = (info.st_ino, info.st_size, info.st_mtime_ns)
        if file.seen != seen:
            file.seen = seen
            self._grown[path] = file

    def _note(self, fault: str, path: str = "") -> None:
        """Note what is to be logged outside of the block in which files are read; once for each path."""
        key = path or fault
        if key in self._faulty or len(self._faulty) >= _FAULTS:
            return
        self._faulty.add(key)
        root = next((root for root in self._roots if path.startswith(os.path.join(root, ""))), os.path.dirname(path))
        where = f"{os.path.relpath(path, root)!r}: " if path else ""
        self._unlogged.append(f"metrics in files: {where}{fault}")

    def _log_faults(self) -> None:
        lines, self._unlogged = self._unlogged, []
        for line in lines:
            self._log(line)


class _MetricFile:
    """One file, and how far it was read."""

    def __init__(self, path: str, reader: MetricReader) -> None:
        self.reader = reader
        self.has_more = False
        self.seen = (0, 0, 0)
        """The inode, size and time of change when it was looked for last."""
        self._path = path
        self._at = 0
        self._size = 0
        self._head = b""
        self._tail = b""
        """The bytes before the place where reading continues: if they are others, the file was written anew."""

    @property
    def unread_bytes(self) -> int:
        return max(0, self._size - self._at)

    def begin_behind(self, *, is_read: bool) -> None:
        """Continue behind what is in the file; if it `is_read`, at its beginning as soon as it changes."""
        descriptor = None if is_read or self.reader.needs_whole_file else _open(self._path)
        if descriptor is None:
            return
        try:
            from stoker.engine.metrics.written_formats import PART_BYTES  # noqa: PLC0415 - as _reader_for

            self._at = self._size = os.fstat(descriptor).st_size
            self._head = os.pread(descriptor, min(_COMPARED_BYTES, self._at), 0)
            tail_bytes = min(_COMPARED_BYTES, self._at)
            self._tail = os.pread(descriptor, tail_bytes, self._at - tail_bytes)
            self.reader.begin_behind(os.pread(descriptor, PART_BYTES, 0))
        finally:
            os.close(descriptor)

    def read(self) -> int:
        """Read a part; return its size."""
        self.has_more = False
        descriptor = _open(self._path)
        if descriptor is None:
            self.reader.fault = self.reader.fault or "it can't be opened"
            return 0
        try:
            return self._read_whole(descriptor) if self.reader.needs_whole_file else self._read_part(descriptor)
        except Exception as error:  # noqa: BLE001 - whatever a file holds, the program is not to blame for it
            self.reader.fault = self.reader.fault or str(error)
            return 0
        finally:
            os.close(descriptor)

    def _read_whole(self, descriptor: int) -> int:
        size = os.fstat(descriptor).st_size
        if size > _WHOLE_BYTES:
            self.reader.fault = f"it has {format_size(size)}; {format_size(_WHOLE_BYTES)} are the most"
            return 0
        data = os.pread(descriptor, size, 0)
        self.reader.read(data, 0)
        return len(data)

    def _read_part(self, descriptor: int) -> int:
        from stoker.engine.metrics.written_formats import PART_BYTES  # noqa: PLC0415 - as _reader_for

        size = os.fstat(descriptor).st_size
        if size < self._size or not self._is_as_before(descriptor):
            self.reader = self.reader.after_rewrite()
            self._at, self._head, self._tail = 0, b"", b""
        self._size = size
        if self._at >= size:
            return 0
        part = os.pread(descriptor, PART_BYTES, self._at)
        taken = self.reader.read(part, self._at)
        if self._at == 0:
            self._head = part[: min(taken, _COMPARED_BYTES)]
        # A reader may skip more than it was given.
        self._tail = (self._tail + part[:taken])[-_COMPARED_BYTES:] if taken <= len(part) else b""
        self._at += taken
        self.has_more = taken > 0 and self._at < size
        return len(part)

    def _is_as_before(self, descriptor: int) -> bool:
        head, tail = self._head, self._tail
        return (not tail or os.pread(descriptor, len(tail), self._at - len(tail)) == tail) and os.pread(
            descriptor, len(head), 0
        ) == head


def _open(path: str) -> int | None:
    """Open a regular file, and nothing else: the program may have put a pipe or a link there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _is_metric_file(name: str) -> bool:
    return (
        name in _CSV_NAMES
        or name == "trainer_state.json"
        or "tfevents" in name
        or (name.startswith("run-") and name.endswith(".wandb"))
    )


def _mlflow_name(path: str) -> str:
    """Return the metric that a file of MLflow's store is for: RUN/meta.yaml, RUN/metrics/NAME; empty if it is none."""
    before, found, name = path.rpartition("/metrics/")
    while found:
        if os.path.isfile(os.path.join(before, "meta.yaml")):
            return name
        before, found, rest = before.rpartition("/metrics/")
        name = f"{rest}/metrics/{name}"
    return ""


def _reader_for(path: str, histories: dict[str, list[int]], *, is_named: bool) -> MetricReader | None:
    """Return a reader for the format that a file's name says; None if there is none."""
    # Most programs write no such file.
    from stoker.engine.metrics import written_formats as formats  # noqa: PLC0415

    folder, name = os.path.split(path)
    if "tfevents" in name:
        return formats.EventFileReader(os.path.basename(folder))
    if name.endswith(".wandb"):
        return formats.WandbReader()
    if name in _CSV_NAMES or (is_named and name.endswith(".csv")):
        return formats.CsvReader(counts_rows=is_named)
    if name.endswith(".json"):
        is_checkpoint = os.path.basename(folder).startswith("checkpoint-")
        training = os.path.dirname(folder) if is_checkpoint else folder
        return formats.TrainerStateReader(histories.setdefault(training, []))
    metric = _mlflow_name(path)
    return formats.MlflowReader(metric) if metric else None
