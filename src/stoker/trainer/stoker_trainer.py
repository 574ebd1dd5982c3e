"""Report the progress of a training to Stoker. One file, standard library only, Python 3.8 or newer.

    import stoker_trainer as t
    start = load(t.resume()) if t.resume() else 0
    for i in range(start, 1000):
        loss = train_one_step()
        t.step(i, of=1000, loss=loss)
        if i % 100 == 0:
            torch.save(state, "ckpt.pt")
            t.saved("ckpt.pt", step=i)
    t.done(loss=loss)

Stoker puts this file on the path of the programs it starts; elsewhere every call does nothing. No call raises into the
training, and none but `saved`, `done` and `failed` waits for a disk: `step` and `eval` put numbers into a bounded
buffer which a thread writes twice a second; what does not fit is counted and shown as a gap. Values become floats when
they are passed, so a tensor on a device is waited for then, as `.item()` would. A forked process reports only its own
calls; call `saved`, and `done` or `failed`, from one process. On a shared device (`STOKER_VRAM_BYTES`), torch is
limited to that much.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import math
import os
import shutil
import signal
import stat
import struct
import sys
import threading
import time
import zlib
from collections import deque
from contextlib import suppress
from typing import Any

VERSION = 1
_MAGIC = b"\x93SKM1\r\n\x1a"
_ROWS_PER_FRAME, _NAME_BYTES, _STEP_LIMIT, _COPIED_BELOW_BYTES = 4096, 200, 1 << 63, 64 << 20
_FLUSH_S, _BEAT_S, _PATIENCE_S = 0.5, 15.0, 5.0  # the last for a disk that hangs, at the end
_SAME_REQUEST_S = 2.0
_CALLS, _NUDGE = 65536, 4096  # how many may wait to be written; when to begin early
_WIDTH = 64  # a call with more metrics counts as several, so that the bound is one of memory


def step(step: int, of: int | None = None, **metrics: Any) -> None:
    """Report that the training is at `step` (of `of`), and its metrics."""
    if _speaker is not None:
        _speaker.take("step", step, of, metrics)


def eval(step: int | None = None, **metrics: Any) -> None:  # noqa: A001 - the contract's own word
    """Report the metrics of an evaluation; `loss` becomes the curve `eval/loss`. Without `step`: at the last one."""
    if _speaker is not None:
        _speaker.take("eval", step, None, metrics)


def saved(path: str | os.PathLike[str], step: int | None = None) -> bool:
    """Register a checkpoint (a file or a folder that is completely written) for `resume`.

    It is synced, hashed and kept under a name of its own together with the one before it: by a link if it is large,
    otherwise, or if it was seen to be overwritten in place, by a copy. Returns True if that worked.
    """
    return _speaker is not None and _speaker.keep(path, step)


def resume() -> str | None:
    """Return the checkpoint to resume from, or `None`. Its bytes are those that were saved, and for this very work."""
    if _speaker is not None:
        _speaker.begin()
    path = os.environ.get("STOKER_RESUME", "") if _speaker is not None else ""
    return path if os.path.exists(path) else None


def params() -> dict[str, Any]:
    """Return the parameters of this trial by name; none elsewhere."""
    given: Any = {}
    with suppress(ValueError):
        given = _speaker and json.loads(os.environ.get("STOKER_PARAMS", "{}"), object_hook=_untagged)
    return given if isinstance(given, dict) else {}


def out() -> str:
    """Return the folder whose content is the result; the current one elsewhere."""
    return (_speaker is not None and os.environ.get("STOKER_OUT")) or "."


def scratch() -> str:
    """Return a folder that survives attempts until the work succeeds; the current one elsewhere."""
    return (_speaker is not None and os.environ.get("STOKER_SCRATCH")) or "."


def heartbeat() -> None:
    """Report that the program is alive, in a long phase without other reports."""
    if _speaker is not None:
        _speaker.begin()
        _speaker.say({"kind": "heartbeat"})


def should_stop() -> bool:
    """Return True if the program received SIGTERM; call it in the main thread.

    From the first call on, the signal sets this flag instead of ending the program, and then calls the handler that
    the program had installed. A second signal, more than 2 s later, does what it always did.
    """
    return _speaker is not None and _speaker.should_stop()


def done(**metrics: Any) -> None:
    """Report, once and last, that the training completed."""
    if _speaker is not None:
        _speaker.end("done", {}, metrics)


def failed(message: object) -> None:
    """Report, once and last, why it failed."""
    if _speaker is not None:
        _speaker.end("failed", {"message": str(message)[:4096]}, {})


class _Speaker:
    """The reports of one process."""

    def __init__(self, control: str, metrics: str) -> None:
        self.control, self.metrics = control, metrics
        self.complaints: set[str] = set()
        self.was_asked_to_stop = self.is_kept_within = False
        self.asked_s = 0.0
        self.start_anew()

    def start_anew(self) -> None:
        """Reset: at first, and in a forked child, where threads that are gone may hold the locks."""
        self.calls: deque[Any] = deque()  # of (kind, step, of, time, metrics)
        self.taken: list[Any] = []
        self.lost = self.lost_in_all = self.last_step = 0
        self.thread: threading.Thread | None = None
        self.has_ended = False
        self.spoke_s = self.heard_s = time.monotonic()
        self.writing, self.counting, self.saving = (threading.RLock() for _ in range(3))
        self.nudge = threading.Lock()
        self.nudge.acquire()
        self.descriptors: dict[str, int] = {}

    def take(self, kind: str, step: Any, of: Any, metrics: dict[str, Any]) -> None:
        """Put a call into the buffer: all that a training waits for."""
        try:
            for value in metrics.values():
                if type(value) is not float:
                    metrics = self.numbers(metrics)
                    break
            step = step if type(step) is int or step is None else int(step)
            of = None if of is None else int(of)
            calls = self.calls
            if len(calls) >= _CALLS or self.has_ended:
                self.lose(len(metrics))
            elif len(metrics) <= _WIDTH:
                calls.append((kind, step, of, time.time(), metrics))
            else:
                items, now_s = list(metrics.items()), time.time()
                parts = (dict(items[at : at + _WIDTH]) for at in range(0, len(items), _WIDTH))
                calls.extend((kind, step, of, now_s, part) for part in parts)
            if self.thread is None:
                self.begin()
            elif len(calls) == _NUDGE:
                with suppress(RuntimeError):
                    self.nudge.release()
        except Exception as error:  # the training must not fail for it
            self.complain("a report was left out", error)

    def numbers(self, metrics: dict[str, Any]) -> dict[str, float]:
        """Return the numbers among some values as floats."""
        found = {}
        for name, value in metrics.items():
            try:
                if isinstance(value, (str, bytes)):
                    raise TypeError("it is text")
                found[name] = float(value)
            except Exception as error:  # noqa: PERF203 - any `__float__` may raise
                self.complain(f"{name} is not a number and is left out", error)
        return found

    def lose(self, count: int) -> None:
        with self.counting:
            self.lost, self.lost_in_all = self.lost + count, self.lost_in_all + count

    def begin(self) -> None:
        """Report the start and start the thread, unless that is done."""
        with self.counting:
            if self.thread is not None or self.has_ended:
                return
            self.thread = threading.Thread(target=self.run, name="stoker_trainer", daemon=True)
        self.say({"kind": "contract", "version": VERSION, "pid": os.getpid()})
        try:
            self.thread.start()
            if "multiprocessing.util" in sys.modules:  # its children pass by what `atexit` has registered
                sys.modules["multiprocessing.util"].Finalize(None, self.flush, exitpriority=100)
        except Exception as error:  # an interpreter that ends has no new threads
            self.complain("metrics are written at the end only", error)

    def keep(self, path: Any, step: Any) -> bool:
        """Record a checkpoint, then report it."""
        self.begin()
        self.flush()
        try:
            where = self.last_step if step is None else int(step)
            with self.saving:
                root, key = os.environ["STOKER_SCRATCH"], os.environ.get("STOKER_RESUME_KEY", "")
                file = keep_checkpoint(os.path.abspath(os.fspath(path)), where, root, key)
        except Exception as error:  # a full disk, a path that is none
            self.complain(f"checkpoint {path} is not kept", error)
            return False
        return self.say({"kind": "saved", "path": file, "step": where})

    def should_stop(self) -> bool:
        if not self.was_asked_to_stop and threading.current_thread() is threading.main_thread():
            installed = signal.getsignal(signal.SIGTERM)
            if installed != self.stop:
                self.stopped_before: Any = installed
                signal.signal(signal.SIGTERM, self.stop)
        return self.was_asked_to_stop

    def stop(self, number: int, frame: Any) -> None:
        """Handle the first SIGTERM; the previous handler handles it too, and every later one alone.

        The default, which ends the program, does so only a while later: a batch system sends a signal to every process,
        and Stoker another to its program, and both are one request.
        """
        now_s, is_default = time.monotonic(), not self.stopped_before
        if not self.was_asked_to_stop:
            self.was_asked_to_stop, self.asked_s = True, now_s
            if not is_default:
                signal.signal(signal.SIGTERM, self.stopped_before)
            if callable(self.stopped_before):
                self.stopped_before(number, frame)
        elif is_default and now_s - self.asked_s >= _SAME_REQUEST_S:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)

    def end(self, kind: str, fields: dict[str, Any], metrics: dict[str, Any]) -> None:
        """Write the last report."""
        numbers = self.numbers(metrics)
        self.take("end", None, None, numbers)
        self.flush()
        with self.counting:
            if not self.say({"kind": kind, "metrics": _tagged(numbers), **fields}) and self.has_ended:
                self.complain(f"{kind} was left out", "the last word had been said")
            self.has_ended = True

    def run(self) -> None:
        """Write twice a second; in silent phases report that the process lives, and since when there was no report."""
        while not self.has_ended:
            self.nudge.acquire(timeout=_FLUSH_S)
            self.flush()
            self.keep_within_share()
            now_s = time.monotonic()
            if now_s - self.spoke_s >= _BEAT_S:
                self.say({"kind": "heartbeat", "quiet_s": round(now_s - self.heard_s, 1)})

    def keep_within_share(self) -> None:
        """Limit torch, once the training uses it on a shared device, to the part of this program."""
        with suppress(Exception):  # optional: Stoker watches from outside as well
            cuda, share = getattr(sys.modules.get("torch"), "cuda", None), os.environ.get("STOKER_VRAM_BYTES")
            if share and cuda is not None and not self.is_kept_within and cuda.is_initialized():
                self.is_kept_within = True
                for index in range(cuda.device_count()):
                    total = cuda.get_device_properties(index).total_memory
                    cuda.set_per_process_memory_fraction(min(1.0, int(share) / total), index)

    def flush(self) -> None:
        """Write what waits. What the disk refuses is tried again the next time."""
        if not self.writing.acquire(timeout=_PATIENCE_S):
            return
        try:
            count = len(self.calls) if len(self.taken) < _CALLS else 0
            fresh = [self.calls.popleft() for _ in range(count)]
            if fresh:
                self.taken += fresh
                self.report(fresh)
            while self.taken:
                self.write_frame()
        except Exception as error:  # the training continues
            if not isinstance(error, OSError):  # the next time would be the same
                self.lose(sum(len(call[4]) for call in self.taken))
                self.taken.clear()
            self.complain("metrics are not written", error)
        finally:
            self.writing.release()

    def report(self, calls: list[Any]) -> None:
        """Report the progress: in one line, however many calls there were, and one for each evaluation."""
        for call in (one for one in calls if one[0] == "eval"):
            self.say({"kind": "eval", "step": call[1], "metrics": _tagged(call[4])})
        latest: dict[str, float] = {}
        place = None
        for kind, step, of, _, metrics in calls[-_WIDTH:]:
            if kind == "step" and step is not None:
                place = {"kind": "step", "step": step, "of": of, "lost": self.lost_in_all}
                latest.update(metrics)
        if place is not None:
            self.say({**place, "metrics": _tagged(latest)})

    def write_frame(self) -> None:
        columns: tuple[list[int], list[float], list[str], list[float]] = ([], [], [], [])
        (steps, times, names, values), calls = columns, 0
        for kind, said_step, _, at_s, metrics in self.taken:
            width = len(metrics)
            if len(values) + width > _ROWS_PER_FRAME:
                break
            if said_step is not None:
                self.last_step = max(-_STEP_LIMIT, min(_STEP_LIMIT - 1, said_step))
            steps += [self.last_step] * width
            times += [at_s] * width
            names += metrics if kind != "eval" else ["eval/" + name for name in metrics]
            values += metrics.values()
            calls += 1
        lost = self.lost
        if values:
            self.append(self.metrics, _frame(steps, times, values, names, lost))
            with self.counting:
                self.lost -= lost
        del self.taken[:calls]

    def say(self, line: dict[str, Any]) -> bool:
        """Append a line to the control file, unless the last report is written."""
        if self.has_ended:
            return False
        try:
            self.append(self.control, json.dumps(line, allow_nan=False).encode("ascii") + b"\n")
        except Exception as error:  # the training continues
            self.complain("the control file can't be written", error)
            return False
        self.spoke_s = time.monotonic()
        self.heard_s = self.heard_s if "quiet_s" in line else self.spoke_s
        return True

    def append(self, path: str, data: bytes) -> None:
        """Append to a file that several processes may share: with one write, so that they never meet inside it."""
        if path not in self.descriptors:
            self.descriptors[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if os.write(self.descriptors[path], data) != len(data):
            raise OSError(f"cut short: {path}")

    def complain(self, what: str, why: object) -> None:
        """Print on stderr what went wrong, each thing once and a limited number."""
        with self.counting:
            if what in self.complaints or len(self.complaints) >= 20:
                return
            self.complaints.add(what)
        with suppress(Exception):
            sys.stderr.write(f"stoker_trainer: {what}: {why} (said once)\n")


def _frame(steps: list[int], times: list[float], values: list[float], names: list[str], lost: int) -> bytes:
    """Write rows as `stoker.engine.metrics.metrics_file` reads them."""
    indices: dict[str, int] = {}
    name_of = [indices.setdefault(name, len(indices)) for name in names]
    cut = [name.encode("utf-8", "replace")[:_NAME_BYTES].decode("utf-8", "ignore").encode() for name in indices]
    count = len(values)
    columns = struct.pack(f"<{count}q{count}d{count}d{count}I", *steps, *times, *values, *name_of)
    table = b"".join(struct.pack("<H", len(name)) + name for name in [name or b"unnamed" for name in cut])
    payload = struct.pack("<IIQB7x", count, len(cut), lost, 0) + columns + table
    size = struct.pack("<I", len(payload))
    return _MAGIC + size + struct.pack("<I", zlib.crc32(payload, zlib.crc32(size))) + payload


def _tagged(metrics: dict[str, float]) -> dict[str, Any]:
    """Return the first metrics of many as JSON can hold them: plain JSON has no NaN."""
    some = list(metrics.items())[:_WIDTH]
    return {name[:_NAME_BYTES]: value if math.isfinite(value) else {"$float": str(value)} for name, value in some}


def _untagged(given: dict[str, Any]) -> Any:
    if given.keys() == {"$float"}:
        return float(given["$float"])
    return {name[1:] if name.startswith("$$") else name: value for name, value in given.items()}


def keep_checkpoint(source: str, step: int | None, root: str, key: str, place: str = "") -> str:
    """Bytes, then the name in `checkpoints.json`: a crash in between leaves a file without a name.

    One with a `place` was not reported: the program may write over it at any time, so it is copied.
    """
    folder, index = os.path.join(root, "checkpoints"), os.path.join(root, "checkpoints.json")
    os.makedirs(folder, exist_ok=True)
    known: list[dict[str, Any]] = []
    with suppress(OSError, ValueError, KeyError, TypeError), open(index, "rb") as file:
        known = [one for one in json.load(file)["checkpoints"] if one["resume_key"] == key and os.fspath(one["file"])]
    numbers = [int(name[:6]) for name in os.listdir(folder) if name[:6].isdigit()]
    name = f"{max(numbers, default=0) + 1:06d}-{os.path.basename(source)[-100:]}"
    target = os.path.join(folder, name)
    linked = dict(_files(os.path.join(root, known[-1]["file"]))) if known else {}
    overwritten = any(os.path.samefile(file, linked.get(name, root)) for name, file in _files(source))
    copied = bool(place) or overwritten or any(entry.get("copied") for entry in known)
    try:
        sha256, size_bytes = _bring(source, target, copied=copied)
    except BaseException:
        _remove(target)
        raise
    if overwritten and known[-1].get("sha256") != sha256:
        known.pop()  # it was kept by a link, and has been written over
    entry = {"file": f"checkpoints/{name}", "step": step, "sha256": sha256, "size_bytes": size_bytes}
    entry.update({"place": place} if place else {})
    kept = [*known[-1:], {**entry, "resume_key": key, "at": time.time(), "copied": copied}]
    with open(index + ".new", "w", encoding="ascii") as new:
        json.dump({"v": 1, "checkpoints": kept}, new)
    _sync(new.name)
    os.replace(index + ".new", index)
    _sync(root)
    for old in set(os.listdir(folder)) - {os.path.basename(one["file"]) for one in kept}:
        _remove(os.path.join(folder, old))
    return target


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


def _files(path: str) -> list[tuple[str, str]]:
    """Return the files of a checkpoint by their name within it; the name of a single one is empty."""
    if not os.path.isdir(path):
        return [("", path)] * os.path.exists(path)
    found = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    return sorted((os.path.relpath(file, path), file) for file in found)


def _copy(source: str, target: str, size_bytes: int) -> None:
    """Copy so many bytes: what is no real file may have no end."""
    with open(source, "rb") as read, open(target, "wb") as written:
        while size_bytes > 0 and (block := read.read(min(size_bytes, 1 << 20))):
            written.write(block)
            size_bytes -= len(block)


def _bring(source: str, target: str, *, copied: bool) -> tuple[str, int]:
    """Put a checkpoint under a name of ours, durably; return its digest and size."""
    digests, size_bytes = [], 0
    for name, file in _files(source):
        to, before = os.path.join(target, name) if name else target, os.stat(file)
        if not stat.S_ISREG(before.st_mode):
            raise OSError(f"{name or file} is not a regular file")
        os.makedirs(os.path.dirname(to), exist_ok=True)
        try:
            if copied or before.st_size < _COPIED_BELOW_BYTES:
                raise OSError("a link would not do")
            os.link(os.path.realpath(file), to)
        except OSError:
            _copy(file, to, before.st_size)
        _sync(to)
        digest = hashlib.sha256()
        with open(to, "rb") as data:
            for block in iter(lambda: data.read(1 << 20), b""):
                digest.update(block)
        digests.append((name, digest.hexdigest()))
        size_bytes += os.path.getsize(to)
        after = os.stat(file)
        if (before.st_ino, before.st_size, before.st_mtime_ns) != (after.st_ino, after.st_size, after.st_mtime_ns):
            raise OSError("it was changed meanwhile")
    if not digests:
        raise FileNotFoundError("there is nothing in it")
    for folder in [*(folder for folder, _, _ in os.walk(target)), os.path.dirname(target)]:
        _sync(folder)
    if not digests[0][0]:
        return digests[0][1], size_bytes
    listed = "".join(f"{name}\0{digest}\n" for name, digest in digests)
    return hashlib.sha256(listed.encode("utf-8", "surrogateescape")).hexdigest(), size_bytes


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_speaker = None
if os.environ.get("STOKER_CONTROL"):
    _speaker = _Speaker(os.environ["STOKER_CONTROL"], os.environ.get("STOKER_METRICS") or os.devnull)
    atexit.register(_speaker.flush)
    os.register_at_fork(after_in_child=_speaker.start_anew)
