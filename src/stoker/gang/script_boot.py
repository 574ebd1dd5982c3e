"""What a rank of a user's script does: run it as `python SCRIPT` would, and say where it is and how it ended.

One file, standard library only, Python 3.8 or newer: where the script's interpreter is not ours, that one is started on
this very file by its path. In our own interpreter it is imported in a forked rank. The script is `__main__`, with its
own arguments, folder and import path; nothing of us stands in its tracebacks. `init_process_group` without a rendezvous
place of its own meets in memory that all ranks have open, so no port is needed, and tells its begin and its end.
"""

from __future__ import annotations

import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))
if __name__ == "__main__" and sys.path and os.path.abspath(sys.path[0]) == _FOLDER:
    # It is the script's folder that belongs there; and our modules must not be taken for others of the same name.
    del sys.path[0]

import builtins  # noqa: E402 - see above
import functools  # noqa: E402
import json  # noqa: E402
import struct  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
import types  # noqa: E402
import zlib  # noqa: E402
from collections.abc import Callable, Mapping  # noqa: E402
from contextlib import suppress  # noqa: E402
from typing import Any  # noqa: E402

FORKED, COMM, READY, RUN = 0, 3, 6, 7
"""The phases of a script, numbered as in `mailbox.Phase`."""
FILE, MODULE, CODE = "file", "module", "code"
"""What the script is: `python SCRIPT`, `python -m MODULE`, `python -c CODE`."""

_C10D = "torch.distributed.distributed_c10d"
_STARTED, _SUCCESS, _ERROR = 1, 2, 3
_INTERRUPTED = 130
_OWN_RENDEZVOUS = ("mpi", "fake")


class Mailbox:
    """The writer of a rank's page, as `mailbox.Publisher` is one; both write a `RankPage`."""

    def __init__(self, mailbox_fd: int, wake_fd: int, *, rank: int, nranks: int) -> None:
        self._fd = mailbox_fd
        self._wake_fd = wake_fd
        self._who = (rank, nranks, rank, os.getpid(), _start_ticks())
        self._turn = threading.RLock()
        self._sequence = 0
        self._phase = FORKED
        self._stamps = [0] * 8

    def begin(self, phase: int) -> None:
        """Publish the start of a phase."""
        with self._turn:
            self._phase = phase
            self._stamps[phase] = time.monotonic_ns()
            self._publish(_SUCCESS if phase >= READY else _STARTED)

    def tell(self, kind: str, text: str, *, failed_ns: int, traceback_text: str = "") -> None:
        """Publish a failure of this kind at that time."""
        trace_bytes = traceback_text.encode(errors="backslashreplace")
        is_cut = len(trace_bytes) > 48 * 1024
        trace_bytes = trace_bytes[-48 * 1024 :]
        os.pwrite(self._fd, trace_bytes, 4096)
        (kind_bytes, kind_cut), (text_bytes, text_cut) = _cut(kind, 63), _cut(text, 1023)
        with self._turn:
            self._publish(_ERROR, (kind_bytes, text_bytes), failed_ns, is_cut or kind_cut or text_cut, len(trace_bytes))

    def _publish(
        self, state: int, error: tuple[bytes, bytes] = (b"", b""), failed_ns: int = 0, cut: int = 0, traced: int = 0
    ) -> None:
        kind, text = error
        self._sequence += 1
        rank, nranks, device, pid, ticks = self._who
        page = bytearray(4096)
        struct.pack_into(
            "<QIIIiQQQQQQIIIQiIIII", page, 16, self._sequence, self._phase, rank, nranks, device, pid, ticks,
            0, 0, 0, 0, 0, 0, 0, failed_ns, 0, cut, traced, len(kind), len(text),
        )  # fmt: skip
        struct.pack_into("<8Q", page, 160, *self._stamps)
        page[320 : 320 + len(kind)] = kind
        page[384 : 384 + len(text)] = text
        struct.pack_into("<IIII", page, 0, 0x47504753, 1, 0, zlib.crc32(memoryview(page)[16:], state))
        # The state comes last: a reader that sees it sees all that belongs to it.
        os.pwrite(self._fd, page[12:], 12)
        os.pwrite(self._fd, page[:8], 0)
        os.pwrite(self._fd, struct.pack("<I", state), 8)
        with suppress(OSError):
            os.write(self._wake_fd, b"\1")


def run(order: Mapping[str, Any], report: Any) -> int:
    """Run the script that the order names to its end; give the status with which this process is to end.

    `report` is a `Mailbox`, or whatever else has its `begin` and `tell`.
    """
    _follow_torch(_GroupStore(order, report))
    status = 1
    try:
        main = _prepare(order)
        report.begin(RUN)
        main()
        status = 0
    except SystemExit as end:
        status, text = _status_of(end)
        if status:
            report.tell(f"exit {status}", text, failed_ns=time.monotonic_ns())
    except BaseException as error:  # noqa: BLE001 - whatever ends the script is published
        failed_ns = time.monotonic_ns()
        trace = _without_us(error.__traceback__)
        trace_text = "".join(traceback.format_exception(type(error), error, trace))
        report.tell(type(error).__name__, _text_of(error), failed_ns=failed_ns, traceback_text=trace_text)
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        status = _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return status


class _GroupStore:
    """The store of the process group, if the script names none."""

    def __init__(self, order: Mapping[str, Any], report: Any) -> None:
        self._rank: int = order["rank"]
        self._nranks: int = order["nranks"]
        self._store_fd: int = order["store_fd"]
        self._report = report
        self._count = 0

    def attach(self, c10d: Any) -> None:
        """Take the place of the function by which a script joins its group."""
        import inspect  # noqa: PLC0415 - slow, and few scripts need it twice

        original = c10d.init_process_group
        signature = inspect.signature(original)

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            self._report.begin(COMM)
            given = signature.bind(*args, **kwargs).arguments
            joined = original(**self._with_store(c10d, given))
            self._report.begin(READY)
            self._report.begin(RUN)
            return joined

        c10d.init_process_group = init_process_group
        for module in list(sys.modules.values()):
            # Others have taken it over under its name.
            names = getattr(module, "__dict__", {})
            if names.get("init_process_group") is original:
                names["init_process_group"] = init_process_group

    def _with_store(self, c10d: Any, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with our store, unless the script has one or means another group than all."""
        is_ours = (
            given.get("store") is None
            and given.get("init_method") in (None, "env://")
            and given.get("rank", -1) in (-1, None, self._rank)
            and given.get("world_size", -1) in (-1, None, self._nranks)
            and str(given.get("backend")).lower() not in _OWN_RENDEZVOUS
        )
        if not is_ours:
            return given
        place = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
        torch_distributed: Any = sys.modules["torch.distributed"]
        store = torch_distributed.FileStore(f"{place}/{self._store_fd}", self._nranks)
        timeout = given.get("timeout") or getattr(c10d, "default_pg_timeout", None)
        if timeout is not None:
            store.set_timeout(timeout)
        self._count += 1
        # What an earlier group of this run has left there is not this one's.
        own = torch_distributed.PrefixStore(f"group-{self._count}", store)
        rest = {name: value for name, value in given.items() if name != "init_method"}
        return {**rest, "store": own, "rank": self._rank, "world_size": self._nranks}


def _follow_torch(store: _GroupStore) -> None:
    """Attach to torch: now, if it is here, or as soon as the script imports it."""
    if _C10D in sys.modules:
        store.attach(sys.modules[_C10D])
    else:
        sys.meta_path.insert(0, _Finder(store))


class _Finder:
    """Sees one module being imported, and has it found as ever."""

    def __init__(self, store: _GroupStore) -> None:
        self._store = store

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _C10D:
            return None
        sys.meta_path.remove(self)
        from importlib.machinery import PathFinder  # noqa: PLC0415 - only now

        spec = PathFinder.find_spec(name, path, target)
        loader: Any = None if spec is None else spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self._store.attach(module)

            loader.exec_module = exec_module
        return spec


def _prepare(order: Mapping[str, Any]) -> Callable[[], object]:
    """Make this process look as the interpreter would for this script; give what runs it."""
    how, what = order["how"], order["what"]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    sys.argv[:] = [{FILE: what, MODULE: "-m", CODE: "-c"}[how], *order["args"]]
    if how == FILE and (os.path.isdir(what) or what.endswith((".zip", ".pyz", ".pyc"))):
        return _run_other(what)
    if not getattr(sys.flags, "safe_path", False) or order.get("is_forked"):
        sys.path.insert(0, {FILE: os.path.dirname(os.path.realpath(what)), MODULE: os.getcwd(), CODE: ""}[how])
    if how == MODULE:
        import runpy  # noqa: PLC0415 - see above

        return functools.partial(runpy._run_module_as_main, what)  # type: ignore[attr-defined]  # noqa: SLF001 - as -m
    if how == CODE:
        return functools.partial(_execute, what, "<string>", main)
    path = os.path.abspath(what)
    from importlib.machinery import SourceFileLoader  # noqa: PLC0415 - only for files

    main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    with open(path, "rb") as file:
        return functools.partial(_execute, file.read(), path, main)


def _run_other(what: str) -> Callable[[], object]:
    """Return what runs a folder, an archive or compiled code."""
    import runpy  # noqa: PLC0415 - rare

    if what.endswith(".pyc"):
        return functools.partial(runpy.run_path, what, run_name="__main__")
    sys.path.insert(0, os.path.abspath(what))
    return functools.partial(runpy._run_module_as_main, "__main__", False)  # type: ignore[attr-defined]  # noqa: SLF001


def _execute(source: Any, name: str, main: types.ModuleType) -> None:
    exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)  # noqa: S102 - the script, as it was asked for


def _without_us(trace: Any) -> Any:
    """Leave out the frames above the script's own."""
    # Compared as they are: to make a path absolute needs a folder that is still there.
    ours = (_without_us.__code__.co_filename, "<frozen runpy>", _run_file())
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    # A script that does not even compile has no frame.
    return trace


def _run_file() -> str:
    return str(getattr(sys.modules.get("runpy"), "__file__", "") or "")


def _status_of(end: SystemExit) -> tuple[int, str]:
    if end.code is None:
        return 0, ""
    if isinstance(end.code, int):
        # As the interpreter does with a number that is no C long.
        return (end.code if -(2**63) <= end.code < 2**63 else -1) & 0xFF, ""
    with suppress(BaseException):
        sys.stderr.write(f"{end.code}\n")
    return 1, _text_of(end)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as worse:  # noqa: BLE001 - the work's own class may do anything
        return f"(its text can't be had: {type(worse).__name__})"


def _cut(text: str, most_bytes: int) -> tuple[bytes, bool]:
    data = text.encode(errors="backslashreplace")
    # No character in halves.
    kept = data[:most_bytes].decode(errors="ignore").encode()
    return kept, len(kept) < len(data)


def _start_ticks() -> int:
    try:
        with open("/proc/self/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _main() -> None:
    """Run what the order says, whose descriptor is the only argument."""
    order_fd = int(sys.argv[1])
    order = json.loads(os.pread(order_fd, os.fstat(order_fd).st_size, 0).decode())
    os.close(order_fd)
    for name in ("mailbox_fd", "wake_fd", "store_fd"):
        # What the script starts is not a rank.
        os.set_inheritable(order[name], False)
    report = Mailbox(order["mailbox_fd"], order["wake_fd"], rank=order["rank"], nranks=order["nranks"])
    report.begin(FORKED)
    sys.exit(run(order, report))


if __name__ == "__main__":
    _main()
