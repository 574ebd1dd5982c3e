"""The interpreter of a Python program: which one a word means in a folder, and which script it would run.

A bare `python` or `python3` is looked up in this order: `python=`; the active environment; `.venv` and
`venv` of the folder; `PATH`. Two environments may be active by accident and come after those of the folder: the one
that Stoker is installed in, and conda's `base`. On `PATH`, `python3` is used if there is no `python`, or if the only
`python` is that of Stoker's environment further back. A private environment of Stoker (pipx, uv tool) is removed from
`PATH`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence

from stoker.core.errors import LocalFile, NoPermission, ProgramNotFound
from stoker.core.frozen import fresh, frozen
from stoker.core.text import did_you_mean
from stoker.host.box_entry import find_program

FOLDER_ENVIRONMENTS = (".venv", "venv")
"""Names of a project's own environment, below its folder."""
FILE, MODULE, CODE = "file", "module", "code"
"""What an interpreter is to run."""

_BARE = re.compile(r"python(3(\.\d+)?)?")
# What pipx and uv leave in an environment that they made for one tool, and where uv keeps temporary ones.
_PRIVATE_MARKS = ("pipx_metadata.json", "uv-receipt.toml")
_UV_CACHE = re.compile(r"/uv/(archive|environments|builds)-v\d+/")
_ANY = ("python", "python3")
"""Names that mean any Python 3; another one names its version and is used as it is."""
_OWN = "Stoker's own environment"
_TAKES_VALUE = "WX"
_RUNS_NO_SCRIPT = frozenset("hViq?")


@frozen
class FolderInterpreter:
    """The interpreter for programs of a folder."""

    path: str
    """Empty if there is none."""
    why: str
    """Where it was found, or that it was not; empty if the program's first word is its path."""
    env: Mapping[str, str | None] = fresh(factory=dict)
    """Variables for a program, so that everything it starts finds the same one; `None` is not set."""


def is_bare_python(word: str) -> bool:
    """Return True if a word means any Python."""
    return _BARE.fullmatch(word) is not None


def is_python(word: str) -> bool:
    """Return True if a program's first word is an interpreter: `python3`, `/usr/bin/python3`, `venv/bin/python`."""
    return is_bare_python(os.path.basename(word))


def find_python(
    wanted: str, *, folder: str, environment: Mapping[str, str], own_prefix: str, word: str = "python"
) -> FolderInterpreter:
    """Choose the interpreter for a program in a folder. `word` is the program's first word.

    For a program that is no interpreter it is the one that a bare `python` would be.

    `wanted` names one: a path, the folder of an environment, or a program on `PATH`; `LocalFile` if it does not exist.
    """
    path = _without_private(environment.get("PATH", os.defpath), own_prefix)
    around = {**environment, "PATH": path}
    if wanted:
        return _named(wanted, word if is_bare_python(word) else "python", folder, around)
    if not is_bare_python(word):
        at = os.path.join(folder, word.removeprefix("./"))
        if is_python(word) and "/" in word and os.path.isfile(at) and os.access(at, os.X_OK):
            return _at(at, "", path)
        word = "python"
    for prefix, why in _environments(folder, environment, own_prefix):
        if found := _in_environment(prefix, word):
            return FolderInterpreter(path=found, why=why, env=_inside(prefix, path))
    found = _on_path(word, folder, around, own_prefix)
    why = "PATH" if found else f"{word} not found on PATH"
    if found and _is_virtual(own_prefix) and _is_same(os.path.dirname(found), os.path.join(own_prefix, "bin")):
        why = f"PATH, {_OWN}"
    return FolderInterpreter(path=found, why=why, env={"PATH": path})


def _environments(folder: str, environment: Mapping[str, str], own_prefix: str) -> Iterator[tuple[str, str]]:
    """Return the candidate environments, the likeliest first, each with where it was found."""
    is_base = environment.get("CONDA_DEFAULT_ENV", "") in ("base", "root")
    doubtful: list[tuple[str, str]] = []
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = environment.get(name, "")
        if prefix and _is_same(prefix, own_prefix):
            doubtful.append((prefix, f"{name}, {_OWN}"))
        elif prefix and is_base and name == "CONDA_PREFIX":
            doubtful.append((prefix, f"{name}, conda's base"))
        elif prefix:
            yield prefix, name
    for name in FOLDER_ENVIRONMENTS:
        prefix = os.path.join(folder, name)
        # A folder called `venv` may be anything.
        if name == ".venv" or _is_virtual(prefix):
            yield prefix, f"{name} of this folder"
    yield from doubtful


def _named(wanted: str, word: str, folder: str, environment: Mapping[str, str]) -> FolderInterpreter:
    path = os.path.join(folder, os.path.expanduser(wanted))
    if os.path.isdir(path):
        path = os.path.join(path, "bin", "python")
    elif "/" not in wanted and not os.path.exists(path):
        path = _found(wanted, folder, environment)
    if not path or not os.path.isfile(path) or not os.access(path, os.X_OK):
        raise LocalFile(
            f"there is no Python at {path or wanted}", hint="python= takes an interpreter or a .venv folder"
        )
    found = _at(path, "python=", environment["PATH"])
    if word in _ANY or word == os.path.basename(path):
        return found
    versioned = _found(word, folder, environment)
    why = "PATH" if versioned else f"{word} not found on PATH"
    return FolderInterpreter(path=versioned, why=why, env=found.env)


def _at(path: str, why: str, search_path: str) -> FolderInterpreter:
    """Return the interpreter at a path, with the variables of its environment if it is in one."""
    prefix = os.path.dirname(os.path.dirname(path))
    if _is_virtual(prefix):
        return FolderInterpreter(path=path, why=why, env=_inside(prefix, search_path))
    # The variable of another active environment would be wrong for programs that read it.
    return FolderInterpreter(path=path, why=why, env={"PATH": search_path, "VIRTUAL_ENV": None})


def _in_environment(prefix: str, word: str) -> str:
    for name in (word, "python") if word in _ANY else (word,):
        path = os.path.join(prefix, "bin", name)
        if os.access(path, os.X_OK):
            return path
    return ""


def _on_path(word: str, folder: str, environment: Mapping[str, str], own_prefix: str) -> str:
    """Return the first interpreter on `PATH`; for `python`, a `python3` before one in Stoker's own environment."""
    names = _ANY if word == "python" else (word,)
    places = environment["PATH"].split(os.pathsep)
    parts = [places]
    if _is_virtual(own_prefix):
        own = os.path.join(own_prefix, "bin")
        first = next((number for number, place in enumerate(places) if _is_same(place, own)), 0)
        parts.insert(0, places[:first])
    for part in filter(None, parts):
        around = {**environment, "PATH": os.pathsep.join(part)}
        for name in names:
            if found := _found(name, folder, around):
                return found
    return ""


def _found(name: str, folder: str, environment: Mapping[str, str]) -> str:
    try:
        return os.path.join(folder, find_program(name, cwd=folder, env=environment))
    except (LocalFile, NoPermission):
        return ""


def _inside(prefix: str, path: str) -> dict[str, str | None]:
    """Return the variables that activating an environment would set."""
    scripts = os.path.join(prefix, "bin")
    rest = [place for place in path.split(os.pathsep) if place != scripts]
    changes: dict[str, str | None] = {"PATH": os.pathsep.join([scripts, *rest])}
    if _is_virtual(prefix):
        changes["VIRTUAL_ENV"] = prefix
    return changes


def _without_private(path: str, own_prefix: str) -> str:
    """Remove an environment that a tool's installer made for Stoker alone from a `PATH`.

    Any other environment with Stoker in it that is on `PATH` is there on purpose: a container's, a cluster's.
    """
    is_private = any(os.path.isfile(os.path.join(own_prefix, mark)) for mark in _PRIVATE_MARKS)
    if not is_private and not _UV_CACHE.search(own_prefix):
        return path
    own = os.path.join(own_prefix, "bin")
    return os.pathsep.join(place for place in path.split(os.pathsep) if not _is_same(place, own))


def _is_virtual(prefix: str) -> bool:
    return os.path.isfile(os.path.join(prefix, "pyvenv.cfg"))


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.stat(one), os.stat(other))
    except OSError:
        return False


# The arguments of an interpreter, read as it reads them.


@frozen
class PythonCommand:
    """An interpreter's arguments: its options, and what it runs."""

    options: tuple[str, ...] = ()
    how: str = ""
    """One of `FILE`, `MODULE`, `CODE`; empty: it runs nothing that is known from its arguments."""
    what: str = ""
    args: tuple[str, ...] = ()


def read_python_command(arguments: Sequence[str]) -> PythonCommand:
    """Return what an interpreter would do with its arguments."""
    words = list(arguments)
    options: list[str] = []
    while words:
        word = words.pop(0)
        if word == "-" or word.startswith("--"):
            break
        if not word.startswith("-"):
            return PythonCommand(options=tuple(options), how=FILE, what=word, args=tuple(words))
        for place, letter in enumerate(word[1:], 1):
            rest = word[place + 1 :]
            if letter in "cm":
                options += [word[:place]] if place > 1 else []
                value = rest or (words.pop(0) if words else "")
                if not value:
                    return PythonCommand()
                how = CODE if letter == "c" else MODULE
                return PythonCommand(options=tuple(options), how=how, what=value, args=tuple(words))
            if letter in _RUNS_NO_SCRIPT:
                return PythonCommand()
            if letter in _TAKES_VALUE:
                options += [word] if rest else [word, *words[:1]]
                words = words if rest else words[1:]
                break
        else:
            options.append(word)
    return PythonCommand()


def script_interpreter(script: str, *, folder: str, environment: Mapping[str, str]) -> str:
    """Return the interpreter that the first line of a Python script names; empty if it names none, or it is unknown."""
    try:
        with open(os.path.join(folder, script), "rb") as file:
            first, *rest = os.fsdecode(file.readline(256)).removeprefix("#!").split() or [""]
            is_script = file.seek(0) == 0 and file.read(2) == b"#!"
    except OSError:
        return ""
    if os.path.basename(first) == "env":
        first = next((word for word in rest if not word.startswith("-") and "=" not in word), "")
    return _found(first, folder, environment) if is_script and is_python(first) else ""


def missing_script(argv: Sequence[str], folder: str) -> str:
    """Return the `.py` file that a program's arguments tell an interpreter to run, if it certainly does not exist."""
    if not argv or not is_python(argv[0]):
        return ""
    command = read_python_command(argv[1:])
    if command.how != FILE or not command.what.endswith(".py"):
        return ""
    try:
        os.stat(os.path.join(folder, command.what))
    except (FileNotFoundError, NotADirectoryError):
        return command.what
    except (OSError, ValueError):
        # It may exist where we can't look.
        return ""
    return ""


def no_script(script: str, folder: str) -> ProgramNotFound:
    """Return the error for a script that does not exist, with the nearest name beside it."""
    beside, name = os.path.split(script)
    try:
        names = sorted(os.listdir(os.path.join(folder, beside)))
    except OSError:
        names = []
    near = did_you_mean(name, [one for one in names if one.endswith(".py")])
    hint = near or "paths are relative to the folder of the command"
    return ProgramNotFound(f"there is no script {script}", hint=hint)
