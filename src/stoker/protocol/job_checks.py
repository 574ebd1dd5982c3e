"""Check a job spec without its recipe: its arguments against its id, and its program against accepted trees. Pure.

A spec has the identity (recipe, schema version, mode, identity args, seed, split_recipe, train_hosts) and the arguments
that run. The id is the digest of the identity. `identity_fault` compares the arguments with it: every identity argument
has the identity's value, and every file, folder or repository is the input with that digest. Other arguments (threads,
device counts, folders) are not checked.

A machine may accept only the code of some trees. A tree's digest is its content, so a submitter cannot choose it; a
commit is only the submitter's claim, and a prefix of a digest can be forged: neither names code here. `start_of` reads
from a job's command which file of the tree it starts: an executable of the tree, or `python` with a script or module of
it. Any other start is refused, as is every other way to bring own code: an interpreter, and variables other than those
that name data.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from stoker.core.digests import Digest, Tree, TreeEntry, encode
from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.core.job import InputKind, JobInput, JobSpec, contents_of, is_content, job_id
from stoker.host.folders import placed_path

PROGRAM = "command"
"""The recipe of programs: part of their identity is not among their identity arguments."""
DATA = "(data)"
"""Key of the digests of a program's data in its identity; not a possible name of an argument."""
PROJECT = "project"
"""Key of the project in the identity: the argument `folder` of an undeclared program."""
RANKS = "ranks"
ENV, ARG, AT = "env:", "arg:", "at:"
"""Beginnings of `JobInput.where`."""
_PLAIN = frozenset({str, int, bool, type(None)})
_LISTS = (list, tuple)
_MISSING = object()


def identity_fault(job: JobSpec) -> str:
    """Return how a job contradicts its id; empty if it does not."""
    try:
        made_of = job_id(
            recipe=job.recipe,
            schema_version=job.schema_version,
            args=job.identity,
            mode=job.mode,
            seed=job.seed,
            split_recipe=job.split_recipe,
            train_hosts=job.train_hosts,
        )
    except (TypeError, ValueError) as error:
        return f"identity can't be encoded: {error}"
    if made_of != job.id:
        return f"id {job.id[:12]} is not the id of this job ({made_of[:12]})"
    fault = _args_fault(job) or (_program_fault(job) if job.recipe == PROGRAM else "")
    return fault or (_inputs_fault(job) if job.inputs or DATA in job.identity else "")


def unproven_args(job: JobSpec) -> dict[str, Any]:
    """Return identity args (name → value in the identity) whose files only the machine that runs the job can check.

    Not all of their paths are inputs of the job: the worker digests them before it starts.
    """
    given = _inputs_by_arg(job)
    found = {}
    for name, wanted in job.identity.items():
        if type(wanted) in (dict, list, tuple) and name in job.args:
            count = sum(1 for _ in contents_of(wanted, job.args[name]))
            if count and count != len(given.get(name, ())):
                found[name] = wanted
    return found


def found_args(job: JobSpec) -> dict[str, str]:
    """Return identity args (name → text in the identity) whose value is the absolute path of the text.

    Only a machine with the recipe knows whether they are paths: the worker refuses those that are not.
    """
    return {
        name: wanted
        for name, wanted in job.identity.items()
        if type(wanted) is str and is_found_at(job.args.get(name), wanted)
    }


def _args_fault(job: JobSpec) -> str:
    args = job.args
    for name, wanted in job.identity.items():
        value = args.get(name, _MISSING)
        kind = type(wanted)
        # The fast path: a submission has ten thousand jobs. Not for 0.0, which equals -0.0.
        if type(value) is kind and value == wanted and (kind in _PLAIN or (wanted if kind is float else not wanted)):
            continue
        if value is _MISSING:
            if name not in (DATA, PROJECT) or job.recipe != PROGRAM:
                return f"argument {name} is missing and part of the id"
        elif not _agree(value, wanted) and not is_found_at(value, wanted):
            return f"argument {name} differs from the one in the id"
    return ""


def _program_fault(job: JobSpec) -> str:
    """Return how a program contradicts the parts of its identity that are no identity arguments."""
    args, identity = job.args, job.identity
    if PROJECT in identity and args.get("folder") != identity[PROJECT]:
        return "folder differs from the project in the id"
    if args.get(RANKS) != identity.get(RANKS):
        return "ranks differ from those in the id"
    data = identity.get(DATA, {})
    if not isinstance(data, dict) or not set(args.get("data") or ()) <= data.keys():
        return "data has variables that are not part of the id"
    return ""


def _inputs_fault(job: JobSpec) -> str:
    identity = job.identity
    found = identity.get(DATA)
    data = found if isinstance(found, dict) else {}
    for one in job.inputs:
        place, _, name = one.where.partition(":")
        if place != "arg" and not _is_input(one, data.get(name)):
            return f"input {one.where} differs from the data in the id"
        if place == "at" and (fault := _place_fault(job, name)):
            return fault
    places = {one.where for one in job.inputs}
    missing = next((name for name in data if data_where(name) not in places), "")
    if missing:
        return f"data {missing} is part of the id and not among the inputs"
    for name, given in _inputs_by_arg(job).items():
        if name not in identity:
            continue
        wanted = list(contents_of(identity[name], job.args.get(name)))
        # If only some are inputs, the worker digests all: `unproven_args`.
        if len(wanted) < len(given) or (len(wanted) == len(given) and not _are_inputs(given, wanted)):
            return f"input arg:{name} differs from the content in the id"
    return ""


def _place_fault(job: JobSpec, name: str) -> str:
    """Return why data can't appear at a path; empty: it can."""
    try:
        if placed_path(name) != name:
            return f"{name!r} is not a path in its normal form"
    except BadInput as error:
        return error.message
    return "" if job.code_tree else f"data can't be placed at {name}: the job has no copy of its code"


def data_where(name: str) -> str:
    """Return `JobInput.where` of data by its name: a path has a `/`, a variable has none."""
    return f"{AT}{name}" if "/" in name else f"{ENV}{name}"


def _inputs_by_arg(job: JobSpec) -> dict[str, list[JobInput]]:
    found: dict[str, list[JobInput]] = {}
    for one in job.inputs:
        place, _, where = one.where.partition(":")
        if place == "arg":
            found.setdefault(where.partition(".")[0], []).append(one)
    return found


def _are_inputs(given: Sequence[JobInput], wanted: Sequence[tuple[str, str]]) -> bool:
    by_number = {one.where.partition(".")[2]: one for one in given}
    if by_number.keys() == {""}:
        return _is_input(by_number[""], wanted[0][1])
    return all(
        (one := by_number.get(str(number))) is not None and _is_input(one, digest)
        for number, (_, digest) in enumerate(wanted)
    )


def _is_input(one: JobInput, digest: object) -> bool:
    """Return True if an input has the identity's content."""
    if not isinstance(digest, str):
        return False
    if one.kind is InputKind.REPO:
        return digest == f"repo:{one.repo}"
    if one.kind is InputKind.TREE:
        return digest == f"tree:{one.tree}"
    kind, _, sha256 = digest.partition(":")
    return kind == "sha256" and one.tree == _tree_of_file(one.name, one.size_bytes, sha256)


@lru_cache(maxsize=256)
def _tree_of_file(name: str, size_bytes: int, sha256: str) -> str:
    return Tree((TreeEntry(name, size_bytes, Digest(sha256)),)).digest()


def _agree(value: Any, wanted: Any) -> bool:
    """Return True if an argument has the identity's value; the identity has the digest in place of a path."""
    kind = type(wanted)
    if kind in _LISTS:
        return type(value) in _LISTS and len(value) == len(wanted) and all(map(_agree, value, wanted))
    if kind is dict:
        if type(value) is str:
            return is_content(wanted)
        return (
            isinstance(value, Mapping)
            and value.keys() == wanted.keys()
            and all(_agree(value[key], one) for key, one in wanted.items())
        )
    if kind is float:
        # 0.0 equals -0.0, but they are different values.
        return type(value) is float and encode(value) == encode(wanted)
    return type(value) is kind and bool(value == wanted)


def is_found_at(value: Any, wanted: Any) -> bool:
    """Return True if `value` is the absolute path of the relative `wanted`: the location is not part of an identity.

    A text without a slash or dot is not a path, and one of dots alone names nothing.
    """
    if type(value) is not str or type(wanted) is not str or not os.path.isabs(value) or os.path.isabs(wanted):
        return False
    if "/" not in wanted and "." not in wanted:
        return False
    named = os.path.normpath(wanted.removeprefix("~/"))
    while named.startswith("../"):
        named = named[3:]
    return named not in (".", "..") and os.path.normpath(value).endswith(f"/{named}")


# Code of accepted trees.

_TREE = re.compile(r"[0-9a-f]{64}")
_SHOWN = 12
_MOST_SHOWN = 3
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
# None of them brings code or leaves the folder of the program out of the path: no -c, -W, -X, -I, -P.
_FLAGS = re.compile(r"-[uBOqEs]+")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_PATH = re.compile(r"(\./)?[A-Za-z0-9_@+=,-][^{}\0\\]*")
_DATA = re.compile(r"([A-Z0-9]+_)*DATA[0-9]*")
_INPUTS = {"inputs", "data", "code"}


@frozen
class ProgramStart:
    """The files that a program starts, by its command."""

    files: tuple[str, ...] = ()
    """Files below its folder; all must be in the tree."""
    either: tuple[tuple[str, ...], ...] = ()
    """Groups of files; one must be in the tree as well."""
    is_executed: bool = False
    """The first file is executed itself."""
    why_not: str = ""
    """Why it starts no file of a tree."""


def why_not_accepted(accepts: Sequence[str], tree: str, about: str) -> str:
    """Return why a machine that accepts only these trees refuses a program's code; empty: it accepts it.

    `tree` and `about` are those of `code_of`. An empty list accepts everything.
    """
    if not accepts or (tree and tree in accepts):
        return ""
    listed = ", ".join(one[:_SHOWN] for one in accepts[:_MOST_SHOWN])
    only = f"accepts only {listed}{f' and {len(accepts) - _MOST_SHOWN} more' if len(accepts) > _MOST_SHOWN else ''}"
    return f"{only}, and this {f'is tree {tree[:_SHOWN]}' if tree else about}"


def code_of(job: Mapping[str, Any] | object) -> tuple[str, str]:
    """Return the tree whose code a program runs, and its commit; or an empty tree and why it runs none.

    `job` is a `JobSpec`, or its dict in the queue.
    """
    tree, args = str(_of(job, "code_tree")), _of(job, "args") or {}
    start = start_of(args.get("argv") or ())
    wheres = [str(_of(one, "where")) for one in _of(job, "inputs")]
    variables = [where.removeprefix(ENV) for where in wheres if where.startswith(ENV)]
    places = {where.removeprefix(ARG).partition(".")[0] for where in wheres if where.startswith(ARG)}
    pythons = [_of(one, "path") for one in _of(job, "environment") if _of(one, "kind") == "python"]
    refused = {
        "runs in a folder, whose code is unknown": not tree,
        start.why_not: bool(start.why_not),
        "names an interpreter (python=)": args.get("python") or "python" in places or any(pythons),
        "sets variables (env.NAME=)": args.get("env"),
        "replaces an argument other than its inputs by a file": places - _INPUTS,
        # It may be a module that the program imports.
        "places data beside its code": any(where.startswith(AT) for where in wheres),
        "names data by a variable other than DATA or …_DATA": not all(
            _DATA.fullmatch(name) for name in (*variables, *(args.get("data") or {}))
        ),
    }
    why = next((why for why, applies in refused.items() if applies), "")
    return ("", why) if why else (tree, str(_of(job, "commit")))


def start_of(argv: Sequence[Any]) -> ProgramStart:
    """Return what a command starts; placeholders in it are not accepted."""
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
    """Return why a program does not start a file of a tree; empty: it does. `files` are the tree's: path → executable.

    They include no symlinks, whose targets are unknown.
    """

    def has(names: Iterable[str]) -> bool:
        return all(posixpath.normpath(posixpath.join(folder, name)) in files for name in names)

    if start.why_not:
        return start.why_not
    if not has(start.files) or (start.either and not any(map(has, start.either))):
        return f"starts {(start.files or start.either[0])[-1]}, which is not in its tree"
    if start.is_executed and not files[posixpath.normpath(posixpath.join(folder, start.files[0]))]:
        return f"starts {start.files[0]}, which is not executable in its tree"
    return ""


def is_tree(text: str) -> bool:
    """Return True if a text is the digest of a tree."""
    return _TREE.fullmatch(text) is not None


def _of(thing: Mapping[str, Any] | object, name: str) -> Any:
    return thing.get(name, "") if isinstance(thing, Mapping) else getattr(thing, name)


def _inner(word: str) -> str:
    """Return a word as a path below the program's folder; empty if it is not one."""
    is_plain = _PATH.fullmatch(word) is not None and ".." not in word.split("/")
    return posixpath.normpath(word) if is_plain else ""
