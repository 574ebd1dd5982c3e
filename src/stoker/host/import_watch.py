"""What this process imports: the state of each source file, or a pinned text in memory.

A source file may be edited while a process runs that has imported it, or will. `watch_imports` notes the stamp that a
file had just before a module was loaded from it, so that `is_imported_from` can decide later whether the module is the
current file. `pin` sets the text of modules in advance: later imports use that text, even if their files were edited
or removed.

Files that a process, or a program that it starts, reads otherwise are not from these texts. A `Watch` notes both by
Python's audit events, in this process and in its forks, so that a result can be refused if a file was edited then.

Bytecode beside a source is valid for Python if the source's size, and its time in whole seconds, are what they were: an
edit within that second would run the code from before it. Bytecode that was not written clearly after its source is
removed, and made again. Installed packages are not edited, so theirs is believed.
"""

from __future__ import annotations

import _posixsubprocess
import linecache
import marshal
import mmap
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import cache_from_source, decode_source, spec_from_file_location
from types import CodeType, ModuleType
from typing import Any

from stoker.core.clock import SystemClock
from stoker.core.frozen import frozen_by_position
from stoker.host.durable import SETTLED_NS, Stamp, stamp_of, write_all

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
# Stoker itself is no part of what a stage's code is.
_ENGINE, _COOKBOOKS = "stoker.", "stoker.cookbooks."
_LIBRARY = os.path.join(os.path.dirname(os.__file__), "")
# Audit events of a program being started; a plain fork has none of them.
_STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.exec", "os.system", "stoker.fork_exec"})


@frozen_by_position
class ModuleSource:
    """One module: the path of its source, and the state of that file when it was read."""

    module: str
    path: str
    """Of a missing module: without `.py`, for whatever might appear in its place."""
    text: bytes | None
    """None: there was no such module."""
    stamp: Stamp | None
    """Stamp of the file of the text; None: it had just changed, so its stamp proves nothing."""
    seen: Stamp | None = None
    """The same, however new: if the file has another one now, it has been written since."""

    @property
    def places(self) -> tuple[str, str]:
        """The files that Python may find under the module's name here."""
        base = self.path.removesuffix(f"{os.sep}__init__.py").removesuffix(".py")
        return os.path.join(base, "__init__.py"), f"{base}.py"


def watch_imports() -> None:
    """Note from now on what is imported from where. Idempotent."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def is_imported_from(source: ModuleSource) -> bool:
    """Return True if a module, if this process has it, was loaded from the file in the state of a source."""
    loaded = sys.modules.get(source.module)
    if loaded is None or source.text is None or _file_of(loaded) != source.path:
        return True
    text = _finder.texts.get(source.path)
    if text is not None:
        return text == source.text
    if source.seen is not None and _is_installed(source.path):
        # It may be a second old, and its ctime changes when an installer links it into another environment, too.
        return _finder.stamps.setdefault(source.path, source.seen)[:3] == source.seen[:3]
    # Imported before the watch started: it is taken for the current file at the first call.
    return source.stamp is not None and _finder.stamps.setdefault(source.path, source.stamp) == source.stamp


def pin(sources: Sequence[ModuleSource]) -> None:
    """Import these modules from these texts from now on. Modules that are imported already stay as they are."""
    watch_imports()
    for source in sources:
        _finder.pins[source.module] = source
        if source.seen is not None:
            # Other interpreters may read it.
            _is_bytecode_newer(source.path, source.seen)


def import_only(sources: Sequence[ModuleSource]) -> None:
    """Pin sources in a process that works with nothing else: modules imported from other states are imported again.

    Such modules come from a parent that started before an edit.
    """
    if not all(map(is_imported_from, sources)):
        for source in sources:
            _forget(source)
    pin(sources)
    watch = Watch()
    watch.begin(sources)
    _process.append(watch)


def may_have_run_other_code() -> bool:
    """Return True if a process that called `import_only` may have worked with another text of its sources."""
    return any(watch.may_have_run_other_code() for watch in _process)


class Watch:
    """Detects that sources were read, or may have been by another program, otherwise than by an import."""

    def __init__(self) -> None:
        self._sources: Sequence[ModuleSource] = ()
        self._by_stem: dict[str, list[ModuleSource]] = {}
        self._others: frozenset[threading.Thread] = frozenset()
        # Forks share it.
        self._is_noted = mmap.mmap(-1, 1)

    def begin(self, sources: Sequence[ModuleSource], others: Sequence[threading.Thread] = ()) -> None:
        """Watch these sources from now on, with nothing noted. Events of `others` are ignored."""
        if sources is not self._sources:
            self._sources = sources
            self._by_stem = {}
            for source in sources:
                self._by_stem.setdefault(_stem(source.path), []).append(source)
        self._others = frozenset(others)
        self._is_noted[0] = 0
        _listen()
        _watches.append(self)

    def hear(self, event: str, path: str) -> None:
        """Note a program that is started, or a file that is opened."""
        if self._others and threading.current_thread() in self._others:
            return
        if event in _STARTS or any(_is_file_of(source, path) for source in self._by_stem.get(_stem(path), ())):
            self._is_noted[0] = 1

    def may_have_run_other_code(self) -> bool:
        """Return True if there was such a reader, and a source has, or had meanwhile, another state."""
        return bool(self._is_noted[0]) and not all(map(_is_untouched, self._sources))


@contextmanager
def watching(sources: Sequence[ModuleSource]) -> Iterator[Watch]:
    """Watch this thread, and those that are started meanwhile, in a process with other work."""
    try:
        watch = _unused.pop()
    except IndexError:
        watch = Watch()
    watch.begin(sources, [one for one in threading.enumerate() if one is not threading.current_thread()])
    try:
        yield watch
    finally:
        _watches.remove(watch)
        _unused.append(watch)


@contextmanager
def handed_on(sources: Sequence[ModuleSource]) -> Iterator[int]:
    """Yield a descriptor from which another process of this interpreter reads sources."""
    descriptor = os.memfd_create("stoker-sources", os.MFD_CLOEXEC)
    try:
        plain = [(one.module, one.path, one.text, one.stamp, one.seen) for one in sources]
        write_all(descriptor, marshal.dumps(plain), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def received(descriptor: int) -> list[ModuleSource]:
    """Return the sources that `handed_on` wrote, and close the descriptor."""
    try:
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)
    return [ModuleSource(*fields) for fields in marshal.loads(data)]  # noqa: S302 - our own process wrote it


def read_source(module: str, path: str, *, now_ns: int) -> ModuleSource:
    """Read a module's source with its stamp. Raises `OSError`."""
    with open(path, "rb", buffering=0) as file:
        before = stamp_of(os.fstat(file.fileno()))
        text = file.readall()
        after = stamp_of(os.fstat(file.fileno()))
    is_settled = before == after and now_ns - max(before[2:]) >= SETTLED_NS
    return ModuleSource(module, path, text, before if is_settled else None, before)


class _Finder:
    """A finder in front of all others; it calls them."""

    def __init__(self) -> None:
        self.stamps: dict[str, Stamp] = {}
        """By path: the stamp of the file before a module was loaded from it."""
        self.texts: dict[str, bytes] = {}
        """By path: what was loaded from memory."""
        self.pins: dict[str, ModuleSource] = {}
        self._clock = SystemClock()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.startswith(_ENGINE) and not name.startswith(_COOKBOOKS):
            return None
        found = self._ask_others(name, path, target)
        source = self.pins.get(name)
        if source is not None and _is_meant(source, found):
            return self._pinned(name, source, found)
        if found is not None and found.origin is not None and type(found.loader) is SourceFileLoader:
            self._note(name, found.origin, found)
        return found

    def _ask_others(self, name: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and (find := getattr(finder, "find_spec", None)) is not None:
                found: ModuleSpec | None = find(name, path, target)
                if found is not None:
                    return found
        return None

    def _pinned(self, name: str, source: ModuleSource, found: ModuleSpec | None) -> ModuleSpec | None:
        if source.text is None:
            if found is None or found.origin is None:
                return found
            message = f"No module named {name!r} (there is one since this work began: {found.origin})"
            raise ModuleNotFoundError(message, name=name)
        is_package = os.path.basename(source.path) == "__init__.py"
        inside = [os.path.dirname(source.path)] if is_package else None
        loader = _TextLoader(name, source)
        return spec_from_file_location(name, source.path, loader=loader, submodule_search_locations=inside)

    def _note(self, name: str, origin: str, found: ModuleSpec) -> None:
        """Note what a module is loaded from; if a stamp can't decide, load it from a text that is kept."""
        is_installed = _is_installed(origin)
        if origin.startswith(_LIBRARY) and not is_installed:
            return
        path = os.path.abspath(origin)
        with suppress(OSError):
            stamp = stamp_of(os.stat(path))
            now_ns = int(self._clock.wall_s() * 1e9)
            if is_installed or (now_ns - max(stamp[2:]) >= SETTLED_NS and _is_bytecode_newer(path, stamp)):
                self.stamps[path] = stamp
                if self.texts.pop(path, None) is not None:
                    linecache.cache.pop(path, None)
            else:
                found.loader = _TextLoader(name, read_source(name, path, now_ns=0))


class _TextLoader(SourceFileLoader):
    """Loads a module from its text; uses its file as long as that is the same."""

    def __init__(self, name: str, source: ModuleSource) -> None:
        super().__init__(name, source.path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType | None:
        source = self._source
        code: CodeType | None = None
        if source.stamp is not None and _is_still(source) and _is_bytecode_newer(source.path, source.stamp):
            with suppress(OSError, ImportError, SyntaxError), _unheard():
                code = super().get_code(fullname)
        if code is None or not _is_still(source):
            code = self.source_to_code(source.text or b"", source.path)
        _finder.texts[source.path] = source.text or b""
        _show_lines(source)
        return code


def _show_lines(source: ModuleSource) -> None:
    """Give readers of source lines (tracebacks, compilers of kernels) the lines of the text."""
    text = source.text or b""
    with suppress(SyntaxError, ValueError):
        # Without a time: never compared with the file.
        linecache.cache[source.path] = (len(text), None, decode_source(text).splitlines(keepends=True), source.path)


def _is_meant(source: ModuleSource, found: ModuleSpec | None) -> bool:
    """Return True if a pinned name refers to its source: another place on the path may come first, as always."""
    return found is None or found.origin is None or os.path.abspath(found.origin) in source.places


def _is_bytecode_newer(path: str, stamp: Stamp) -> bool:
    """Return True if no bytecode can come from an earlier text of a source; bytecode that may is removed."""
    if _is_installed(path):
        return True
    try:
        bytecode = cache_from_source(path)
        if os.stat(bytecode).st_mtime_ns - max(stamp[2:]) >= SETTLED_NS:
            return True
        os.unlink(bytecode)
    except FileNotFoundError:
        return True
    except (OSError, NotImplementedError):
        return False
    return True


def _is_installed(path: str) -> bool:
    return any(part in path for part in _INSTALLED)


def _is_still(source: ModuleSource) -> bool:
    try:
        return stamp_of(os.stat(source.path)) == source.stamp
    except OSError:
        return False


def _is_untouched(source: ModuleSource) -> bool:
    """Return True if a file has not been written since it was read, or a missing one is still missing."""
    if source.text is None:
        return not any(map(os.path.exists, source.places))
    try:
        return stamp_of(os.stat(source.path)) == source.seen
    except OSError:
        return False


def _stem(path: str) -> str:
    return path.rpartition(os.sep)[2].partition(".")[0]


def _is_file_of(source: ModuleSource, path: str) -> bool:
    """Return True if a path is that of a source or of its bytecode; a relative one may be, below any folder."""
    if not os.path.isabs(path):
        return True
    files = source.places if source.text is None else (source.path,)
    real = os.path.realpath(path)
    return any(real in (os.path.realpath(file), os.path.realpath(cache_from_source(file))) for file in files)


def _listen() -> None:
    if not _hearing:
        _hearing.append(True)
        sys.addaudithook(_hear)
        _tell_of_fork_exec()


def _hear(event: str, args: tuple[Any, ...]) -> None:
    """Pass an audit event on. An exception here would be raised by the cause of the event."""
    if not _watches or (event != "open" and event not in _STARTS) or getattr(_unheard_here, "is_so", False):
        return
    path = ""
    if event == "open":
        if isinstance(args[0], int):
            return
        try:
            path = os.fsdecode(args[0])
        except (TypeError, ValueError):
            return
    for watch in _watches.copy():
        watch.hear(event, path)


def _tell_of_fork_exec() -> None:
    """Raise an audit event for the interpreters that `multiprocessing` starts; Python has none."""
    fork_exec = _posixsubprocess.fork_exec

    def heard(*args: Any) -> int:
        sys.audit("stoker.fork_exec")
        return fork_exec(*args)

    _posixsubprocess.fork_exec = heard


@contextmanager
def _unheard() -> Iterator[None]:
    """Open sources for an import: the result is compared with the text."""
    _unheard_here.is_so = True
    try:
        yield
    finally:
        _unheard_here.is_so = False


def _forget(source: ModuleSource) -> None:
    loaded = sys.modules.get(source.module)
    if loaded is None or source.text is None or _file_of(loaded) != source.path:
        return
    del sys.modules[source.module]
    package, _, name = source.module.rpartition(".")
    if package in sys.modules:
        # `from package import name` would find it there.
        with suppress(AttributeError):
            delattr(sys.modules[package], name)


def _file_of(module: ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    return os.path.abspath(file) if file else None


_finder = _Finder()
_unheard_here = threading.local()
_hearing: list[bool] = []
"""Not empty: audit events are received. That can't be ended."""
_watches: list[Watch] = []
_unused: list[Watch] = []
"""For the next ones, since shared memory costs more than a trivial stage's own work. A fork that outlives its stage
still notes in it what it reads: then a later result is refused if its source was edited, too, and computed again."""
_process: list[Watch] = []
"""Those of this process for its lifetime."""


# Functions and values by name, so that one process can name to another what to run.


def entry_point(name: str) -> Any:
    """Import `module:name`, or `module:name.within`. Raises `ImportError`, `AttributeError`."""
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
