"""Which code a machine runs that accepts only some: trees by their digest, and programs that lie in them. Pure.

A tree's digest is its content, so it is the only name that a submitter can't choose. A commit is what the submitter
says, and a part of a digest can be met on purpose: neither names code here.

That a job names an accepted tree says nothing about what it starts. `start_of` reads from a job's words which file of
the tree that is: an executable of the tree, or `python` with a script or a module of the tree. Any other start is
refused, as is everything else by which a job could bring code of its own: an interpreter, and variables other than
those that name its data.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stoker.core.frozen import frozen

_TREE = re.compile(r"[0-9a-f]{64}")
_SHOWN = 12
_MOST_SHOWN = 3
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
# None of them brings code or leaves the folder of the program out of the path: no -c, -W, -X, -I, -P.
_FLAGS = re.compile(r"-[uBOqEs]+")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_PATH = re.compile(r"(\./)?[A-Za-z0-9_@+=,-][^{}\0\\]*")
_DATA = re.compile(r"([A-Z0-9]+_)*DATA[0-9]*")
_ENV, _ARG = "env:", "arg:"
_INPUTS = {"inputs", "data", "code"}


@frozen
class ProgramStart:
    """What a program starts with, as its words say."""

    files: tuple[str, ...] = ()
    """Files below its folder, of which all have to be in the tree."""
    either: tuple[tuple[str, ...], ...] = ()
    """Of these groups one has to be in the tree as well."""
    is_executed: bool = False
    """The first one is started itself."""
    why_not: str = ""
    """Why it is no start of a file in a tree."""


def why_not_accepted(accepts: Sequence[str], tree: str, about: str) -> str:
    """Return why a program's code is not run by a machine that accepts only these trees; empty: it is.

    `tree` and `about` are those of `code_of`. If nothing is listed, everything is accepted.
    """
    if not accepts or (tree and tree in accepts):
        return ""
    listed = ", ".join(one[:_SHOWN] for one in accepts[:_MOST_SHOWN])
    only = f"accepts only {listed}{f' and {len(accepts) - _MOST_SHOWN} more' if len(accepts) > _MOST_SHOWN else ''}"
    return f"{only}, and this {f'is tree {tree[:_SHOWN]}' if tree else about}"


def code_of(job: Mapping[str, Any] | object) -> tuple[str, str]:
    """Return the tree whose code a program runs, and its commit; without a tree, why it is no program of one.

    `job` is a `JobSpec`, or one as the queue keeps it.
    """
    tree, args = str(_of(job, "code_tree")), _of(job, "args") or {}
    start = start_of(args.get("argv") or ())
    wheres = [str(_of(one, "where")) for one in _of(job, "inputs")]
    variables = [where.removeprefix(_ENV) for where in wheres if where.startswith(_ENV)]
    places = {where.removeprefix(_ARG).partition(".")[0] for where in wheres if where.startswith(_ARG)}
    pythons = [_of(one, "path") for one in _of(job, "environment") if _of(one, "kind") == "python"]
    refused = {
        "runs in a folder, whose code is not known": not tree,
        start.why_not: bool(start.why_not),
        "names an interpreter (python=)": args.get("python") or "python" in places or any(pythons),
        "sets variables (env.NAME=)": args.get("env"),
        "puts a file in the place of another argument than its inputs": places - _INPUTS,
        "names data by a variable that is neither DATA nor ends in _DATA": not all(
            _DATA.fullmatch(name) for name in (*variables, *(args.get("data") or {}))
        ),
    }
    why = next((why for why, applies in refused.items() if applies), "")
    return ("", why) if why else (tree, str(_of(job, "commit")))


def start_of(argv: Sequence[Any]) -> ProgramStart:
    """Read what a program starts with from its words; what they may be filled with later is not accepted there."""
    words = [str(word) for word in argv]
    if not words:
        return ProgramStart(why_not="starts nothing")
    first, *rest = words
    if not _PYTHON.fullmatch(first):
        path = _inner(first) if "/" in first else ""
        return (
            ProgramStart(files=(path,), is_executed=True)
            if path
            else ProgramStart(why_not="starts a program outside of its tree")
        )
    while rest and _FLAGS.fullmatch(rest[0]):
        del rest[0]
    if len(rest) > 1 and rest[0] == "-m" and _MODULE.fullmatch(rest[1]):
        *parents, _ = parts = rest[1].split(".")
        packages = tuple("/".join((*parents[: at + 1], "__init__.py")) for at in range(len(parents)))
        place = "/".join(parts)
        return ProgramStart(files=packages, either=((f"{place}.py",), (f"{place}/__init__.py", f"{place}/__main__.py")))
    path = _inner(rest[0]) if rest and not rest[0].startswith("-") else ""
    return (
        ProgramStart(files=(path,))
        if path
        else ProgramStart(why_not="starts Python without a script or module of its tree")
    )


def why_not_in_tree(start: ProgramStart, folder: str, files: Mapping[str, bool]) -> str:
    """Return why a start is none of a tree; empty: it is. `files` are the tree's: path → may be executed.

    Symlinks are none of them: where one leads is not said by its path.
    """

    def has(names: Iterable[str]) -> bool:
        return all(posixpath.normpath(posixpath.join(folder, name)) in files for name in names)

    if start.why_not:
        return start.why_not
    if not has(start.files) or (start.either and not any(map(has, start.either))):
        return f"starts {(start.files or start.either[0])[-1]}, which is no file of its tree"
    if start.is_executed and not files[posixpath.normpath(posixpath.join(folder, start.files[0]))]:
        return f"starts {start.files[0]}, which is not executable in its tree"
    return ""


def is_tree(text: str) -> bool:
    """Return True if a text is the digest of a tree."""
    return _TREE.fullmatch(text) is not None


def _of(thing: Mapping[str, Any] | object, name: str) -> Any:
    return thing.get(name, "") if isinstance(thing, Mapping) else getattr(thing, name)


def _inner(word: str) -> str:
    """Return a word as a path below the program's folder; empty if it is none, or leads elsewhere."""
    is_plain = _PATH.fullmatch(word) is not None and ".." not in word.split("/")
    return posixpath.normpath(word) if is_plain else ""
