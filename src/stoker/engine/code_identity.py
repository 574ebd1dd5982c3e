"""Which code a stage is: a digest of the syntax of its module and of the first-party modules that this imports.

Comments, docstrings, formatting and positions do not count; everything else in those modules does. First-party is the
code that changes with the user: the project that a stage's module lies in, or, for an installed cookbook, its own
package; for a cookbook that ships with Stoker, all that ship. Stoker's engine is not part of it (its promise is the key
format); other distributions enter by the versions that a stage declares. Imports are followed as they are written, also
inside functions; what is imported by computed name is not seen, which the guide says.

Reading and parsing costs milliseconds per module, so results are remembered by the stamps of all files involved.

What runs is the text that was digested, not what lies on the disk when it is imported: the process that starts a stage
hands the sources (`sources_of`) to the process that does the work, which imports those (`host.import_watch`).
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import sha256
from typing import Any

from stoker.core.clock import Clock, SystemClock
from stoker.core.errors import MissingExtra, StokerError
from stoker.core.frozen import frozen_by_position
from stoker.core.jsontext import dumps, loads
from stoker.core.text import lazy_pattern
from stoker.engine.stage import Stage
from stoker.host.durable import SETTLED_NS, stamp_of, write_file
from stoker.host.import_watch import ModuleSource, read_source
from stoker.host.install import OWN_EXTRAS, pip_install

OWN = "(module)"
"""What a stage's own module goes by, whatever it is called: moving it changes nothing."""

_FORMAT = 3
_OURS = "stoker.cookbooks"
_WITH_STAGES = (_OURS, "stoker.crossval")
"""Packages of ours that have stages: the rest of Stoker is no part of their code, as for a cookbook of others."""


@frozen_by_position
class _Roots:
    """Where first-party modules of one stage are looked for."""

    folder: str
    prefix: str
    """Only modules at or below this name; empty for every module in the folder."""

    def find(self, module: str) -> str | None:
        """Return the file that Python would import: a package goes before a module of its name."""
        base = self.base(module)
        if base is not None:
            for path in (os.path.join(base, "__init__.py"), f"{base}.py"):
                if os.path.isfile(path):
                    return path
        return None

    def watched(self, module: str) -> list[str]:
        """Return the folders in which a new file would change what is found under a name."""
        base = self.base(module)
        return [] if base is None else [folder for folder in (os.path.dirname(base), base) if os.path.isdir(folder)]

    def base(self, module: str) -> str | None:
        """Return where a module would lie, without its ending; None for one that is not first-party by its name."""
        if self.prefix and module != self.prefix and not module.startswith(f"{self.prefix}."):
            return None
        if module == _OURS:
            # The folder of all cookbooks holds nothing of any.
            return None
        return os.path.join(self.folder, *module.split("."))


@frozen_by_position
class _Known:
    """The code of one stage's module, as it was when it was looked at."""

    code: dict[str, str]
    paths: dict[str, str]
    """By the name of each module: its file."""
    absent: tuple[str, ...]
    """Modules that are imported and were not found among the first-party ones."""
    stamps: dict[str, list[int]]
    is_recalled: bool = False
    """Its files had not changed for a while when they were read, so their stamps prove what they hold."""


class CodeIdentity:
    """Digests of stages' code, remembered in one file."""

    def __init__(self, memo_path: str, *, clock: Clock | None = None) -> None:
        self._memo_path = memo_path
        self._clock = clock or SystemClock()
        self._memo: dict[str, Any] | None = None
        self._known: dict[str, _Known] = {}
        self._is_fresh = False

    def modules_of(self, module: str) -> dict[str, str]:
        """Return the digest of each first-party module that a stage's module is made of, its own under `OWN`."""
        if module not in self._known:
            self._known[module] = self._recall(module) or self._compute(module)
        return self._known[module].code

    def sources_of(self, module: str) -> tuple[ModuleSource, ...] | None:
        """Return the texts that were digested for a stage's module; None if one of the files has changed since."""
        self.modules_of(module)
        known, now_ns = self._known[module], self._now_ns()
        sources = []
        for name, path in known.paths.items():
            try:
                source = read_source(name, path, now_ns=now_ns)
            except OSError:
                return None
            own_name = OWN if name == module else name
            is_proven = known.is_recalled and source.stamp is not None and list(source.stamp) == known.stamps[path]
            if not is_proven and _digest_of_module(source.text or b"", path, name)[0] != known.code[own_name]:
                return None
            sources.append(source)
        roots = _roots_of(module, known.paths[module])
        places = ((name, roots.base(name)) for name in known.absent)
        return (*sources, *(ModuleSource(name, base, None, None) for name, base in places if base is not None))

    def is_changed(self, module: str) -> bool:
        """Return whether a file of a stage's code looks otherwise than when its code was digested."""
        known = self._known.get(module)
        return known is not None and not _look_so(known.stamps, known.paths.values())

    def forget(self, module: str = "") -> None:
        """Look at a module's files again when it is next asked for; at those of every module if none is named."""
        if module:
            self._known.pop(module, None)
        else:
            self._known.clear()

    def save(self) -> None:
        """Write down what was computed. Failing to only costs time."""
        if self._is_fresh and self._memo is not None:
            try:
                write_file(self._memo_path, dumps(self._memo).encode())
            except StokerError:
                return
            self._is_fresh = False

    def _recall(self, module: str) -> _Known | None:
        entry = self._load().get("modules", {}).get(module)
        if not isinstance(entry, dict) or entry.get("file") != _file_of(module):
            return None
        try:
            known = _Known(dict(entry["code"]), dict(entry["paths"]), tuple(entry["absent"]), entry["stamps"], True)
            return known if module in known.paths and _look_so(known.stamps, known.stamps) else None
        except (KeyError, AttributeError, TypeError, ValueError):
            return None

    def _compute(self, module: str) -> _Known:
        file = _file_of(module)
        roots = _roots_of(module, file)
        code: dict[str, str] = {}
        paths: dict[str, str] = {}
        stamps: dict[str, list[int]] = {}
        seen: set[str] = set()
        waiting = [module]
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            path = file if name == module else roots.find(name)
            for watched in (*roots.watched(name), *([path] if path else ())):
                stamps[watched] = list(stamp_of(os.stat(watched)))
            if path is not None:
                paths[name] = path
                code[OWN if name == module else name], imports = _read_module(path, name)
                waiting.extend(imports)
        known = _Known(code, paths, tuple(sorted(seen - set(paths))), stamps)
        # Files that have just been edited may be edited again without their stamps showing it.
        if self._now_ns() - max(max(stamps[path][2:]) for path in paths.values()) >= SETTLED_NS:
            entry = {"file": file, "code": code, "paths": paths, "absent": list(known.absent), "stamps": stamps}
            self._load().setdefault("modules", {})[module] = entry
            self._is_fresh = True
        return known

    def _now_ns(self) -> int:
        return int(self._clock.wall_s() * 1e9)

    def _load(self) -> dict[str, Any]:
        if self._memo is None:
            try:
                with open(self._memo_path, "rb") as file:
                    memo = loads(file.read())
            except (OSError, ValueError):
                memo = {}
            same = isinstance(memo, dict) and memo.get("format") == _FORMAT
            self._memo = memo if same else {"format": _FORMAT}
        return self._memo


def _look_so(stamps: Mapping[str, list[int]], paths: Iterable[str]) -> bool:
    """Return whether files and folders have the stamps that they had."""
    try:
        return all(list(stamp_of(os.stat(path))) == stamps[path] for path in paths)
    except OSError:
        return False


def files_behind(script: str, *, module: str = "", roots: Sequence[str] = ()) -> list[str]:
    """Return a script and every module file that it imports, however far; a script that is gone: none.

    Modules are looked for in `roots`, or else beside the script. What Python finds elsewhere, an installed library, is
    not among them. `module` is the name that the script itself goes by, if it is run as one.
    """
    places = [_Roots(os.path.abspath(folder), "") for folder in roots or (os.path.dirname(os.path.abspath(script)),)]
    found: dict[str, None] = {}
    seen: set[str] = set()
    waiting: list[tuple[str, str]] = [(module, os.path.abspath(script))]
    while waiting:
        name, path = waiting.pop()
        if path in found:
            continue
        try:
            _, imports = _read_module(path, name)
        except OSError:
            continue
        found[path] = None
        fresh = [one for one in imports if one not in seen]
        seen.update(fresh)
        for one in fresh:
            files = (file for place in places if (file := place.find(one)) is not None)
            waiting += [(one, file) for file in list(files)[:1]]
    return sorted(found)


def digest_of_syntax(syntax: ast.AST, imports: list[ast.Import | ast.ImportFrom] | None = None) -> str:
    """Digest the meaning-bearing part of a syntax tree, the same on every version of Python that has the syntax.

    The import statements anywhere in it are added to `imports`.
    """
    parts: list[bytes] = []
    # A stack and not recursion: a sum of a thousand terms is a tree a thousand deep.
    stack: list[Any] = [syntax]
    while stack:
        item = stack.pop()
        if type(item) is _Mark:
            parts.append(item)
        elif isinstance(item, ast.AST):
            if imports is not None and isinstance(item, ast.Import | ast.ImportFrom):
                imports.append(item)
            begin, fields = _FORMS.get(type(item)) or _form_of(type(item))
            parts.append(begin)
            stack.append(_END)
            for name, mark in fields:
                value = getattr(item, name, None)
                if name == "body" and isinstance(item, _DOCUMENTED):
                    value = _without_docstring(item.body)
                elif type(item) is ast.JoinedStr:
                    # Python 3.12 puts empty texts into f-strings where others have none.
                    value = [part for part in item.values if not (isinstance(part, ast.Constant) and part.value == "")]
                # Absent and empty fields are left out: newer versions of Python add such fields to old syntax.
                if value is not None and value != []:
                    stack += (value, mark)
        elif isinstance(item, list):
            stack += (_END_OF_LIST, *reversed(item), _LIST)
        else:
            # `ascii` and not `repr`: which characters are printable changes with the version of Python.
            parts.append(f"{type(item).__name__} {item!a}\0".encode())
    return sha256(b"".join(parts)).hexdigest()


class _Mark(bytes):
    """Bytes of the form itself, as opposed to a value that stands in the tree."""

    __slots__ = ()


_END, _LIST, _END_OF_LIST = _Mark(b")\0"), _Mark(b"[\0"), _Mark(b"]\0")
_UNTOLD = ("ctx", "type_comment", "kind", "type_ignores")
_FORMS: dict[type, tuple[_Mark, tuple[tuple[str, _Mark], ...]]] = {}
"""Of each class of syntax: how it begins, and its telling fields with their marks, the last one first."""


def _form_of(kind: type[ast.AST]) -> tuple[_Mark, tuple[tuple[str, _Mark], ...]]:
    names = [name for name in reversed(kind._fields) if name not in _UNTOLD]
    form = _Mark(f"({kind.__name__}\0".encode()), tuple((name, _Mark(name.encode() + b"\0")) for name in names)
    _FORMS[kind] = form
    return form


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_docstring = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if is_docstring else body


def _read_module(path: str, name: str) -> tuple[str, tuple[str, ...]]:
    """Return the digest of a module's code and the names that it imports."""
    with open(path, "rb") as source:
        return _digest_of_module(source.read(), path, name)


def _digest_of_module(text: bytes, path: str, name: str) -> tuple[str, tuple[str, ...]]:
    try:
        return _understood(text, path, name)
    except (SyntaxError, ValueError, RecursionError):
        # Code that this Python can't read, perhaps never imported here: then every byte of it counts.
        return sha256(text).hexdigest(), ()


# The stages of a cookbook share most of their modules.
@lru_cache(maxsize=256)
def _understood(text: bytes, path: str, name: str) -> tuple[str, tuple[str, ...]]:
    imports: list[ast.Import | ast.ImportFrom] = []
    digest = digest_of_syntax(ast.parse(text, filename=path), imports)
    return digest, tuple(_imported(imports, name, is_package=path.endswith("__init__.py")))


def _imported(statements: Iterable[ast.Import | ast.ImportFrom], module: str, *, is_package: bool) -> Iterator[str]:
    """Name every module that import statements of a module may load, parents included."""
    package = module if is_package else module.rpartition(".")[0]
    for node in statements:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        else:
            base = _absolute(node.module, node.level, package)
            yield from _with_parents(base)
            for alias in node.names:
                yield f"{base}.{alias.name}" if base else alias.name


def _absolute(name: str | None, level: int, package: str) -> str:
    if level == 0:
        return name or ""
    parents = package.split(".")[: len(package.split(".")) - (level - 1)]
    return ".".join([*parents, name] if name else parents)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def _file_of(module: str) -> str:
    loaded = sys.modules.get(module)
    file: str | None = getattr(loaded, "__file__", None)
    if not file:
        message = f"stage module {module} has no source file, so its code has no identity"
        raise TypeError(message)
    return os.path.abspath(file)


def _roots_of(module: str, file: str) -> _Roots:
    depth = module.count(".") + (1 if os.path.basename(file) == "__init__.py" else 0)
    folder = os.path.dirname(file)
    for _ in range(depth):
        folder = os.path.dirname(folder)
    parts = module.split(".")
    for package in _WITH_STAGES:
        if module == package or module.startswith(f"{package}."):
            # Of cookbooks all: one that ships may build on another.
            return _Roots(folder, package)
    installed = os.path.basename(folder) in ("site-packages", "dist-packages")
    return _Roots(folder, parts[0] if installed else "")


# Versions of installed distributions, read from the names of their metadata folders: no import, no parsing.


_ABSENT = "absent"
_NAME = lazy_pattern(r"(?P<name>.+?)-(?P<version>[^-]+)\.(?:dist|egg)-info", re.ASCII)


def version_of(distribution: str) -> str:
    """Return the installed version of a distribution, `absent` if there is none. `python` is the interpreter's own."""
    if distribution == "python":
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    return _installed(tuple(sys.path)).get(_normal(distribution), _ABSENT)


@cache
def _installed(search: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in search:
        try:
            names = os.listdir(folder or ".")
        except OSError:
            continue
        for name in names:
            if name.endswith("-info") and (match := _NAME.fullmatch(name)):
                found.setdefault(_normal(match["name"]), match["version"])
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def missing_of(stages: Sequence[Stage]) -> MissingExtra | None:
    """Return which distributions that stages declare to use are not installed, if any."""
    missing: dict[str, str] = {}
    for stage in stages:
        for name in stage.uses:
            if version_of(name) == _ABSENT:
                missing.setdefault(name, stage.name)
    if not missing:
        return None
    first = next(iter(missing.values()))
    extra = first.partition("/")[0]
    is_ours = any(stage.name == first and stage.module.startswith("stoker.cookbooks.") for stage in stages)
    extras = sorted({name if name in OWN_EXTRAS else extra for name in missing})
    hint = pip_install(f"stoker[{','.join(extras)}]") if is_ours else pip_install(*sorted(missing))
    message = f"{first} needs {', '.join(sorted(missing))}: not installed"
    return MissingExtra(message, hint=hint, missing=sorted(missing))
