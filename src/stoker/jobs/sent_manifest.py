"""A manifest that came as a text, without the folder that it is from: which jobs it makes, and what is wrong with it.

The reader, the checks and the specs are those of `stoker submit MANIFEST`. No file is read, and none is looked for: a
job that needs one (code, data, an environment, a path among its arguments) is named with the reason, and has to be
submitted from its folder. `check_manifest_text` has to run where nothing is lost if it takes too long or too much
memory, such as `request_child`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from stoker.config.fields import FileDiagnostics
from stoker.config.manifest_file import HostEntry, ParsedJobEntry, read_manifest_into
from stoker.config.manifest_rules import KnownNames
from stoker.core.errors import Diagnostic, InvalidManifest
from stoker.core.frozen import changed, frozen
from stoker.engine.args import ArgSpec, ArgsSchema
from stoker.engine.code_identity import CodeIdentity
from stoker.jobs.builder import JobBuilder
from stoker.jobs.manifest_checks import CheckedJob, count_of
from stoker.jobs.pack.code_tree import PreparedSubmission
from stoker.jobs.request import JobRequest
from stoker.jobs.submission import ManifestJobs, SubmissionBuilder, known_recipes

_PLACE = re.compile(r":(\d+):(\d+)(?:: (.*))?$", re.DOTALL)
_KEY = re.compile(r"jobs\[(\d+)\]")
_MOST_DEEP = 60
_OF_PATHS = frozenset("/\\~\0")
_SUFFIX = re.compile(r"[^.]\.[A-Za-z][A-Za-z0-9]{0,9}$")


@frozen
class SentDiagnostic:
    """One validation error of a manifest."""

    line: int
    """From 1; 0: the file as a whole."""
    column: int
    key: str
    """`jobs[0].sweep.lr`."""
    message: str
    hint: str = ""
    shown: str = ""
    """The line itself, with carets under it."""


@frozen
class SentEntry:
    """One job of a manifest, as it stands there."""

    name: str
    line: int
    does: str
    """Its recipe, or its program."""
    count: int = 1
    """How many jobs its sweep makes."""
    faults: int = 0
    why_not: str = ""
    """Why it can't be submitted without its folder; empty: it can."""


@frozen
class CheckedManifest:
    """What a manifest makes."""

    entries: tuple[SentEntry, ...] = ()
    diagnostics: tuple[SentDiagnostic, ...] = ()
    count: int = 0
    """Of all errors; the first are in `diagnostics`."""
    prepared: PreparedSubmission | None = None
    """Its jobs; None if something is wrong, or one of them needs its folder."""


def check_manifest_text(
    name: str, text: str, *, builder: JobBuilder, code: CodeIdentity, known_jobs: Collection[str] | None
) -> CheckedManifest:
    """Check a manifest, called `name` in messages. `known_jobs` as for `submission.prepare`.

    Raises `BadInput` for a name that is neither TOML's nor YAML's.
    """
    # Nothing is readable, so whatever would be read below is an error and no answer.
    own = changed(builder, readable=())
    entries: list[SentEntry] = []

    def make(
        jobs: Sequence[ParsedJobEntry], hosts: tuple[HostEntry, ...], reading: FileDiagnostics
    ) -> PreparedSubmission:
        request = JobRequest(target=name, is_manifest=True, in_place=True)
        made = ManifestJobs(SubmissionBuilder(own, code, request), reading, refuse=needs_of_folder)
        prepared = made.prepare(jobs, hosts, source=name)
        entries[:] = _entries(jobs, made)
        return prepared

    known = KnownNames(recipes=known_recipes(own.catalogue), jobs=known_jobs)
    try:
        prepared = read_manifest_into(make, name, name, known, data=text.encode())
    except InvalidManifest as error:
        count = error.data.get("count")
        found = tuple(_placed(fault) for fault in error.faults)
        listed = tuple(_with_faults(entries, found))
        return CheckedManifest(entries=listed, diagnostics=found, count=count if isinstance(count, int) else len(found))
    if any(entry.why_not for entry in entries):
        return CheckedManifest(entries=tuple(entries))
    # There is no folder that they are from.
    jobs = tuple(changed(job, folder="") for job in prepared.jobs)
    return CheckedManifest(entries=tuple(entries), prepared=changed(prepared, jobs=jobs))


def needs_of_folder(checked: CheckedJob) -> str:
    """Return what of a manifest's folder a job needs; empty: nothing."""
    entry = checked.entry
    if checked.program is not None:
        listed = [key for key in ("data", "include", "env", "python") if getattr(entry, key)]
        more = f"; and so {'is' if len(listed) == 1 else 'are'} {', '.join(listed)}" if listed else ""
        return f"its command runs code of the manifest's folder{more}"
    specs = checked.form.recipe.args.specs
    for arg, value in checked.values.items():
        if arg in specs and (paths := specs[arg].type.paths(value)):
            return f"{arg} names a file or folder: {paths[0]}"
    given = {"hyper": checked.job.given.get("hyper", {}), "sweep": checked.job.given.get("sweep", {})}
    for place, value in given.items():
        for key, inner in value.items() if isinstance(value, dict) else ():
            arg = str(key).partition(".")[0]
            leaves = _leaves_of(str(key), checked.form.recipe.args)
            for one in _texts(inner):
                if may_name_file(one):
                    return f"{place}.{key} may name a file, a folder or a repository: {one}"
                if arg in checked.form.recipe.brings or any(leaf.type.paths(one) for leaf in leaves):
                    return f"{place}.{key} names a file, a folder or a repository: {one}"
    return ""


def _leaves_of(key: str, args: ArgsSchema) -> list[ArgSpec]:
    """Return the arguments that a key sets: one, or all fields of a record."""
    return [leaf for path, leaf in args.leaves() if path == key or path.startswith(f"{key}.")]


def may_name_file(text: str) -> bool:
    """Return True for a text that may name a file, a folder or a repository: such as one with a slash or a suffix."""
    return bool(set(text) & _OF_PATHS) or text in (".", "..") or _SUFFIX.search(text) is not None


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the texts in a plain value, also those that are keys."""
    if isinstance(value, str):
        yield value
    elif depth < _MOST_DEEP and isinstance(value, dict):
        for key, one in value.items():
            yield str(key)
            yield from _texts(one, depth + 1)
    elif depth < _MOST_DEEP and isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one, depth + 1)


def _entries(jobs: Sequence[ParsedJobEntry], made: ManifestJobs) -> Iterator[SentEntry]:
    for job in jobs:
        entry, given = job.entry, job.given
        if entry is None:
            yield SentEntry(name="", line=given.node.line, does="")
            continue
        yield SentEntry(
            name=entry.name,
            line=given.node.line,
            does=" ".join(entry.command) if entry.command else entry.of,
            count=count_of(job.sweep),
            why_not=made.refused.get(given.key, ""),
        )


def _with_faults(entries: Sequence[SentEntry], found: Sequence[SentDiagnostic]) -> Iterator[SentEntry]:
    counts: dict[int, int] = {}
    for one in found:
        if (match := _KEY.match(one.key)) is not None:
            counts[int(match[1])] = counts.get(int(match[1]), 0) + 1
    for at, entry in enumerate(entries):
        yield changed(entry, faults=counts[at]) if at in counts else entry


def _placed(fault: Diagnostic) -> SentDiagnostic:
    place = _PLACE.search(fault.where)
    line, column, key = (int(place[1]), int(place[2]), place[3] or "") if place else (0, 0, fault.where)
    return SentDiagnostic(line=line, column=column, key=key, message=fault.message, hint=fault.hint, shown=fault.shown)
