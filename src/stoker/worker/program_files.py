"""A program's own files: what decides, beside its words, what it does.

Found without running anything: scripts and configuration files among its words, what a Python script or module imports
from the project, what a shell script names. Too many is harmless, a result is then made once more than needed. A
program that takes its code from elsewhere (an installed library, a file whose name it computes) is not seen through.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from stoker.plan.code_identity import files_behind
from stoker.store.local_files import may_read

_SCRIPTS = (".sh", ".bash", ".zsh", ".pl", ".rb", ".R", ".jl", ".js", ".lua")
_RUNNERS = frozenset({"sh", "bash", "dash", "zsh", "perl", "ruby", "Rscript", "julia", "node", "lua"})
_SETTINGS = (".yaml", ".yml", ".toml", ".json", ".ini", ".cfg", ".conf", ".gin")
_LARGEST_SCRIPT_BYTES = 1 << 20
_LARGEST_SETTINGS_BYTES = 1 << 24
_SHELL_WORD = re.compile(r"[\w./+-]+")


class ProgramFiles:
    """Finds the files of one program's trials, which share most of their words: each is looked at once."""

    def __init__(self, folder: str, readable: tuple[str, ...] | None = None) -> None:
        """Make it for a program's folder.

        Only in `readable` places (None: all) is anything looked for. What lies elsewhere is not among the files, there
        or not; of a folder that is not in such a place there are none.
        """
        self.all: dict[str, str] = {}
        """Every file that was found, by its name in the program's folder."""
        self._folder = folder
        self._readable = readable
        self._known: dict[tuple[str, str, bool], dict[str, str]] = {}

    def of(self, argv: Sequence[str], outputs: Sequence[str] = ()) -> dict[str, str]:
        """Give the files of one trial by their names in the program's folder. What it writes is not among them."""
        found: dict[str, str] = {}
        if not may_read(self._folder, self._readable):
            return found
        for position, word in enumerate(argv):
            before = argv[position - 1] if position else ""
            key = (before if before == "-m" else "", word, position == 0)
            known = self._known.get(key)
            if known is None:
                paths = dict.fromkeys(self._behind(word, before, is_first=position == 0))
                known = self._known[key] = {os.path.relpath(path, self._folder): path for path in paths}
            found |= known
        written = tuple(os.path.join(os.path.normpath(one), "") for one in outputs)
        found = {name: path for name, path in found.items() if not os.path.join(name, "").startswith(written)}
        self.all |= found
        return found

    def _behind(self, word: str, before: str, *, is_first: bool) -> Iterator[str]:
        if before == "-m":
            yield from self._module(word)
        for text in (word, word.partition("=")[2]):
            path = os.path.normpath(os.path.join(self._folder, text)) if text and "\0" not in text else ""
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
        """Give what a shell script seems to run."""
        before = ""
        for word in _SHELL_WORD.findall(_text_of(script)):
            path = os.path.normpath(os.path.join(self._folder, word))
            if before == "-m":
                yield from self._module(word)
            elif word.endswith(".py") and self._is_file(path):
                yield from files_behind(path, roots=[os.path.dirname(path), *self._roots()])
            elif word.endswith((*_SCRIPTS, *_SETTINGS)) and self._is_file(path):
                yield path
            before = word

    def _module(self, name: str) -> Iterator[str]:
        """Give the files of a module that is run by its name."""
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
        return [self._folder, os.path.join(self._folder, "src")]


def program_name(argv: Sequence[str]) -> str:
    """Give what a job of a program is called: its script or module, else the program itself."""
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
