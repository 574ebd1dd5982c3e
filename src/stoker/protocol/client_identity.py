"""Check that what a job runs is what its id was made from, without the recipe's cookbook.

A job spec carries the identity (recipe, schema version, mode, identity args, seed, split_recipe, train_hosts)
and the arguments that run. The id is the digest of the first; this module holds the second against it: every identity
argument has the value that is in the identity, and every file, folder or repository is the input with that digest.
Arguments that are no part of the identity (threads, device counts, folders) are not judged here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from stoker.core.digests import Digest, Tree, TreeEntry, encode
from stoker.core.job import InputKind, JobInput, JobSpec, contents_of, is_content, job_id

PROGRAM = "command"
"""The recipe of programs: part of their identity is not among their identity arguments."""
DATA = "(data)"
"""Under this the digests of a program's data stand in its identity; no argument can be called so."""
PROJECT = "project"
"""Under this the project stands there: what the argument `folder` of an undeclared program holds."""
RANKS = "ranks"
_PLAIN = frozenset({str, int, bool, type(None)})
_LISTS = (list, tuple)
_MISSING = object()


def identity_fault(job: JobSpec) -> str:
    """Return what contradicts a job's id in the job itself; empty if nothing does."""
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
        return f"its identity can't be encoded: {error}"
    if made_of != job.id:
        return f"its id {job.id[:12]} is not that of what it asks for ({made_of[:12]})"
    fault = _args_fault(job) or (_program_fault(job) if job.recipe == PROGRAM else "")
    return fault or (_inputs_fault(job) if job.inputs or DATA in job.identity else "")


def unproven_args(job: JobSpec) -> dict[str, Any]:
    """Return identity args (name → its value in the identity) whose files only the machine that runs the job can check.

    Their paths are no inputs of the job, or not all of them: the worker digests them before it starts.
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
    """Return identity args (name → its text in the identity) that run with the whole path of what the text names.

    Only the machine that has the recipe can tell whether they are paths: the worker refuses those that are not.
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
        # Orders come by the ten thousand, and most of what they hold is decided here. Not so 0.0, which equals -0.0.
        if type(value) is kind and value == wanted and (kind in _PLAIN or (wanted if kind is float else not wanted)):
            continue
        if value is _MISSING:
            if name not in (DATA, PROJECT) or job.recipe != PROGRAM:
                return f"its argument {name} is missing, and its id is made from it"
        elif not _agree(value, wanted) and not is_found_at(value, wanted):
            return f"its argument {name} is not the one that its id is made from"
    return ""


def _program_fault(job: JobSpec) -> str:
    """Check what a program's identity has beside its identity arguments."""
    args, identity = job.args, job.identity
    if PROJECT in identity and args.get("folder") != identity[PROJECT]:
        return "its folder is not the project that its id is made from"
    if args.get(RANKS) != identity.get(RANKS):
        return "its ranks are not those that its id is made from"
    data = identity.get(DATA, {})
    if not isinstance(data, dict) or not set(args.get("data") or ()) <= data.keys():
        return "its data has variables that are no part of its id"
    return ""


def _inputs_fault(job: JobSpec) -> str:
    identity = job.identity
    found = identity.get(DATA)
    data = found if isinstance(found, dict) else {}
    for one in job.inputs:
        place, _, name = one.where.partition(":")
        if place == "env" and not _is_input(one, data.get(name)):
            return f"its input {one.where} is not the data that its id is made from"
    places = {one.where for one in job.inputs}
    missing = next((name for name in data if f"env:{name}" not in places), "")
    if missing:
        return f"its data {missing} is no input of it, and its id is made from it"
    for name, given in _inputs_by_arg(job).items():
        if name not in identity:
            continue
        wanted = list(contents_of(identity[name], job.args.get(name)))
        # Where only some are inputs, the worker digests all: `unproven_args`.
        if len(wanted) < len(given) or (len(wanted) == len(given) and not _are_inputs(given, wanted)):
            return f"its input arg:{name} is not the content that its id is made from"
    return ""


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
    """Return True if an input's content is what the identity names."""
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
    """Return True if an argument is what the identity has; a path stands there as the digest of its content."""
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
        # 0.0 equals -0.0, and they are two values.
        return type(value) is float and encode(value) == encode(wanted)
    return type(value) is kind and bool(value == wanted)


def is_found_at(value: Any, wanted: Any) -> bool:
    """Return True if a text became the whole path of what it names: where that lies is no part of an identity.

    A text without a slash or dot is no path to be found, and one of dots alone does not say what it names.
    """
    if type(value) is not str or type(wanted) is not str or not os.path.isabs(value) or os.path.isabs(wanted):
        return False
    if "/" not in wanted and "." not in wanted:
        return False
    named = os.path.normpath(wanted.removeprefix("~/"))
    while named.startswith("../"):
        named = named[3:]
    return named not in (".", "..") and os.path.normpath(value).endswith(f"/{named}")
