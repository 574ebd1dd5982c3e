"""A program's own files: what decides, beside its words, what it does.

Found without running anything: scripts and configuration files among its words, what a Python script or module imports
from the project, what a shell script names. Too many is harmless, a result is then made once more than needed. A
program that takes its code from elsewhere (an installed library, a file whose name it computes) is not seen through.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from stoker.config.values import fill_text
from stoker.core.device import Capacity
from stoker.core.digests import Digest, digest_value
from stoker.core.errors import Diagnostic
from stoker.core.frozen import frozen
from stoker.core.text import did_you_mean_path, lazy_pattern, nearest
from stoker.engine.code_identity import files_behind
from stoker.engine.program import RESUME, fill_some, places_in, required_in
from stoker.store.memo import may_read

_SCRIPTS = (".sh", ".bash", ".zsh", ".pl", ".rb", ".R", ".jl", ".js", ".lua")
_RUNNERS = frozenset({"sh", "bash", "dash", "zsh", "perl", "ruby", "Rscript", "julia", "node", "lua"})
_SETTINGS = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".conf", ".gin")
_LARGEST_SCRIPT_BYTES = 1 << 20
_LARGEST_SETTINGS_BYTES = 1 << 24
_SHELL_WORD = lazy_pattern(r"[\w./+-]+")


class ProgramFiles:
    """Finds the files of one program's trials, which share most of their words: each is looked at once."""

    def __init__(self, folder: str, readable: tuple[str, ...] | None = None) -> None:
        """Make it for a program's folder.

        Only in `readable` places (None: all) is anything looked for. What lies elsewhere is not among the files, there
        or not; of a folder that is not in such a place there are none.
        """
        self.all: dict[str, str] = {}
        """Every file that was found, by its name in the program's folder."""
        self.folder = folder
        self._readable = readable
        self._known: dict[tuple[str, str, bool], dict[str, str]] = {}

    def of(self, argv: Sequence[str], outputs: Sequence[str] = ()) -> dict[str, str]:
        """Return the files of one trial by their names in the program's folder. What it writes is not among them."""
        found: dict[str, str] = {}
        if not may_read(self.folder, self._readable):
            return found
        for position, word in enumerate(argv):
            before = argv[position - 1] if position else ""
            key = (before if before == "-m" else "", word, position == 0)
            known = self._known.get(key)
            if known is None:
                paths = dict.fromkeys(self._behind(word, before, is_first=position == 0))
                known = self._known[key] = {os.path.relpath(path, self.folder): path for path in paths}
            found |= known
        written = tuple(os.path.join(os.path.normpath(one), "") for one in outputs)
        found = {name: path for name, path in found.items() if not os.path.join(name, "").startswith(written)}
        self.all |= found
        return found

    def _behind(self, word: str, before: str, *, is_first: bool) -> Iterator[str]:
        if before == "-m":
            yield from self._module(word)
        for text in (word, word.partition("=")[2]):
            path = os.path.normpath(os.path.join(self.folder, text)) if text and "\0" not in text else ""
            if path and self._is_file(path):
                yield from self._file(path, is_program=is_first)

    def _file(self, path: str, *, is_program: bool) -> Iterator[str]:
        if path.endswith(".py"):
            yield from files_behind(path, roots=[os.path.dirname(path), *self._roots()])
        elif path.endswith(_SETTINGS):
            if os.path.getsize(path) <= _LARGEST_SETTINGS_BYTES:
                yield path
        elif is_program or path.endswith(_SCRIPTS) or _begins_as_script(path):
            yield path
            yield from self._named_in(path)

    def _named_in(self, script: str) -> Iterator[str]:
        """Return what a shell script seems to run."""
        before = ""
        for word in _SHELL_WORD.findall(_text_of(script)):
            path = os.path.normpath(os.path.join(self.folder, word))
            if before == "-m":
                yield from self._module(word)
            elif word.endswith(".py") and self._is_file(path):
                yield from files_behind(path, roots=[os.path.dirname(path), *self._roots()])
            elif word.endswith((*_SCRIPTS, *_SETTINGS)) and self._is_file(path):
                yield path
            before = word

    def _module(self, name: str) -> Iterator[str]:
        """Return the files of a module that is run by its name."""
        parts = name.split(".")
        if not all(part.isidentifier() for part in parts):
            return
        for root in self._roots():
            base = os.path.join(root, *parts)
            for path, module in ((f"{base}.py", name), (os.path.join(base, "__main__.py"), f"{name}.__main__")):
                if self._is_file(path):
                    yield from files_behind(path, module=module, roots=self._roots())
                    yield from self._packages_of(root, parts)

    def _packages_of(self, root: str, parts: Sequence[str]) -> Iterator[str]:
        for count in range(1, len(parts) + 1):
            path = os.path.join(root, *parts[:count], "__init__.py")
            if self._is_file(path):
                yield from files_behind(path, module=".".join(parts[:count]), roots=self._roots())

    def _is_file(self, path: str) -> bool:
        return may_read(path, self._readable) and os.path.isfile(path)

    def _roots(self) -> list[str]:
        return [self.folder, os.path.join(self.folder, "src")]


def program_name(argv: Sequence[str]) -> str:
    """Return what a job of a program is called: its script or module, else the program itself."""
    from stoker.host.interpreter import is_bare_python  # noqa: PLC0415 - 5 ms that only a program should cost

    first, *rest = argv
    runner = os.path.basename(first)
    if is_bare_python(runner) and len(rest) > 1 and rest[0] == "-m":
        return _named(rest[1].rpartition(".")[2])
    script = "" if "-c" in rest[:1] else next((word for word in rest if not word.startswith("-")), "")
    if script.endswith((".py", *_SCRIPTS)) and (is_bare_python(runner) or runner in _RUNNERS):
        runner = os.path.basename(script)
    # Without its suffix: where a folder is named like the job, the script itself must not be in the way.
    stem, suffix = os.path.splitext(runner)
    return _named(stem if suffix in (".py", *_SCRIPTS) else runner)


def _named(text: str) -> str:
    kept = "".join(char if char.isalnum() or char in "-_.=," else "_" for char in text).lstrip("-.")
    return kept[:60] or "program"


def _begins_as_script(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(2) == b"#!"
    except OSError:
        return False


def _text_of(path: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST_SCRIPT_BYTES)
    except OSError:
        return ""
    # A program that was compiled is no list of names.
    return "" if b"\0" in data else data.decode(errors="replace")


# From a line like `stoker run lr=1e-2 -- python train.py --lr {lr}` to arguments of the recipe `command`.
#
# What the recipe declares (`inputs`, `outputs`, `memory` …) is taken as that; everything else that is set is a
# parameter of the program, and `{name}` in its words stands for one. A parameter is put in as it was typed; one from a
# file as it would be typed.

RECIPE = "command"
PLACES = ("out", "scratch", RESUME)
"""Places that are filled when the program starts: where its result and its checkpoints go, and what it resumes from."""
FOUND = ("argv", "params", "folder", "workspace", "code", "metrics", "machine_gpus", "machine_cpus")
"""Arguments of the recipe that the builder sets; they can't be typed."""

# Parameters may be called anything: only one that is spelt nearly like a setting is taken for a slip.
_MISSPELT = 0.8


def is_found(recipe: str, name: str) -> bool:
    """Return True if an argument, by its dotted name, is one that Stoker found out for a program."""
    return recipe == RECIPE and name.partition(".")[0] in FOUND and not name.startswith(("argv", "params"))


def shown_argv(argv: Sequence[str]) -> list[str]:
    """Return the words of a job's program for people: in the job, braces that are no places are doubled."""
    return [word.replace("{{", "{").replace("}}", "}") for word in argv]


@frozen
class ProgramWords:
    """A program as it was given, its places unfilled."""

    argv: tuple[str, ...]
    folder: str
    capacity: Capacity
    gpus: int = 0
    """How many this machine has."""
    at_once: int = 1
    """How many of it share the machine's cores, if nothing says how many one takes."""
    metrics: tuple[str, ...] = ()
    """Where its metrics are read from: patterns, paths, or `off`."""

    def faults(self, paths: Iterable[str], settings: Collection[str] = ()) -> list[Diagnostic]:
        """Return a fault for each place that nothing fills and each parameter that has a reserved name.

        `paths` are the parameters that are set, `settings` those of Stoker's own: no place takes one of them.
        """
        paths = list(paths)
        known = {*paths, *PLACES}
        faults = [
            _setting_as_place(place)
            if not only_params([place], settings)
            else Diagnostic(
                f"{{{place}}}",
                "nothing gives it a value",
                did_you_mean_path(place, sorted(known))
                or f"set {place}=VALUE before --, or write {{{{{place}}}}} for plain braces",
            )
            for place in dict.fromkeys(place for word in self.argv for place in required_in(word))
            if place not in known
        ]
        faults += [
            Diagnostic(
                place, "names a place of its own, where the program's files go", "call the parameter something else"
            )
            for place in PLACES
            if place in paths and place != RESUME
        ]
        return faults

    def remarks(self, paths: Iterable[str], settings: Iterable[str] = ()) -> list[str]:
        """Return which parameters no place takes, and which of those may be a misspelt setting of the recipe."""
        used = {place for word in self.argv for place in places_in(word)}
        unused = [path for path in dict.fromkeys(paths) if path not in used]
        if not unused:
            return []
        settings = list(settings)
        near = [(path, nearest(path, settings, likeness=_MISSPELT)) for path in unused]
        misspelt = [f"{path} is no setting of a program's run (did you mean {one!r}?)" for path, one in near if one]
        return [
            *misspelt,
            f"no {{…}} of the program takes {', '.join(unused)}: it can ask stoker_trainer or $STOKER_PARAMS",
        ]

    def args(
        self,
        settings: Mapping[str, Any],
        params: Mapping[str, Any],
        texts: Mapping[str, str],
        files: ProgramFiles,
    ) -> dict[str, Any]:
        """Return the recipe's arguments for one trial. `texts` are parameters as they were typed."""
        words = {path: texts[path] if path in texts else fill_text(value) for path, value in flat(params).items()}
        filled = tuple(fill_some(word, words, PLACES) for word in self.argv)
        return {
            **settings,
            "argv": filled,
            "params": dict(params),
            "folder": self.folder,
            "metrics": self.metrics,
            **self.today(files.of(filled, settings.get("outputs", ()))),
        }

    def today(self, code: Mapping[str, str]) -> dict[str, Any]:
        """Return those arguments that do not depend on what was typed, but on how things are."""
        return {
            "code": code,
            "machine_gpus": self.gpus,
            "machine_cpus": max(1, self.capacity.cpu // self.at_once),
        }

    def name(self) -> str:
        """Return what a job of this program is called."""
        return program_name(self.argv)

    def family(self) -> Digest:
        """Return what sweeps of this program have in common."""
        return digest_value("sweep-family", [list(self.argv), self.folder])


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested values by their dotted paths."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def only_params(paths: Iterable[str], declared: Container[str]) -> list[str]:
    """Return the dotted paths that the recipe does not declare: those of the program's parameters."""
    return [path for path in paths if path not in declared and path.partition(".")[0] not in declared]


def split(values: Mapping[str, Any], declared: Container[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the recipe declares, and the rest: the program's parameters."""
    settings = {name: value for name, value in values.items() if name in declared}
    return settings, {name: value for name, value in values.items() if name not in declared}


def _setting_as_place(place: str) -> Diagnostic:
    hint = f"set a parameter as well: x=VALUE before --, {{x}} after it; or write {{{{{place}}}}} for plain braces"
    return Diagnostic(f"{{{place}}}", "is a setting of Stoker's own, not a parameter of the program", hint)
