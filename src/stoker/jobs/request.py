"""A job request: what was asked for, and the composed configuration of it, with all faults in one error.

Overrides that can't be parsed, a configuration that does not compose and placeholders without a value are one list of
faults. Equal faults of several trials are reported once, with the first trial that has them.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from stoker.config.compose import ComposedConfig, compose
from stoker.config.overrides import Override, OverrideKind, read_overrides
from stoker.config.positions import fault_at
from stoker.config.sweep import Axis, ListedAxisValues, paths_of
from stoker.config.values import Schema
from stoker.core.errors import (
    BadInput,
    Diagnostic,
    InvalidArgs,
    InvalidConfig,
    InvalidInput,
    InvalidProgram,
    MissingRepoFiles,
)
from stoker.core.frozen import fresh, frozen
from stoker.core.text import lazy_pattern
from stoker.jobs.program import ProgramWords, flat, only_params, split
from stoker.store.records import Record
from stoker.store.trees import Heed

if TYPE_CHECKING:
    from stoker.jobs.job_folder import JobFolder

_REPLACING = frozenset({OverrideKind.CHANGE, OverrideKind.FORCE})
_ARGUMENT = lazy_pattern(r"argument (\d+)\b")
_KEY = lazy_pattern(r"(?:\+\+|[+~])?([^=+\s]+)")


@frozen
class JobRequest:
    """A request for one job or the jobs of one file: a command line, a manifest, an adapters file or a rerun."""

    target: str = ""
    """A recipe, a plan file, a manifest or an adapters file; empty for a program and for a rerun."""
    overrides: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    """Configuration files; later ones win."""
    program: tuple[str, ...] = ()
    name: str = ""
    """The job's name (default: the recipe's last word, the script or the file)."""
    at_once: int = 1
    """Programs that share the machine's cores if a program does not set `cpus`."""
    is_manifest: bool = False
    is_adapters_file: bool = False
    earlier: JobFolder | None = None
    """A job to build again, with today's code and files."""
    metrics: tuple[str, ...] = ()
    """Where a program's metrics are read from beside its output: patterns and paths; `off`: nowhere."""
    fields: Mapping[str, Any] = fresh(factory=dict)
    """Fields of the `JobSpec` that options of the command line set, by name: `priority`, `after`, `timeout_s`."""
    env: Mapping[str, str] = fresh(factory=dict)
    """Platform → file that a program's environment is made from; "" is any other platform."""
    in_place: bool = False
    """Programs run in the folder itself, on machines that have it; no code is sent."""
    include: tuple[str, ...] = ()
    """Untracked files that are sent with a program's code."""
    data: Mapping[str, str] = fresh(factory=dict)
    """A program's data by variable, or by the path at which it appears: that has a `/`."""

    @property
    def is_plan_file(self) -> bool:
        return self.target.endswith(".json") and not self.program


def compose_request(
    request: JobRequest,
    *,
    schema: Schema,
    environment: Mapping[str, str],
    folder: str,
    owner: str,
    program: ProgramWords | None = None,
) -> tuple[ComposedConfig, list[Override]]:
    """Compose the configuration of a request, or raise one error with every fault.

    It is `InvalidProgram` if only the program's placeholders are wrong, `InvalidArgs` if there are neither files nor a
    program, else `InvalidConfig`.
    """
    words, files = request.overrides, request.files
    overrides, unread = read_overrides(words)
    composed: ComposedConfig | None = None
    faults, hint = list(unread), ""
    try:
        composed = compose(files=files, overrides=overrides, schema=schema, environment=environment, folder=folder)
    except InvalidConfig as error:
        torn = _keys_of(words[_position(fault) - 1] for fault in unread)
        faults += [one for one in error.faults if one.where not in torn or not one.message.startswith("is required")]
        hint = error.hint
    wrong_words = _wrong_words(program, composed, overrides, words, files, schema)
    if composed is not None and not faults and not wrong_words:
        return composed, overrides
    raise _error_of(
        sorted(faults, key=_position), wrong_words, owner=owner, hint=hint, is_typed=not files and program is None
    )


@contextmanager
def located_faults(composed: ComposedConfig, owner: str) -> Iterator[None]:
    """Name the place in a file of each fault that a recipe finds in its arguments."""
    try:
        yield
    except InvalidArgs as error:
        error.faults = tuple(_located(fault, composed, owner) for fault in error.faults)
        if len(error.faults) == 1:
            error.message = str(error.faults[0])
        raise


def _located(fault: Diagnostic, composed: ComposedConfig, owner: str) -> Diagnostic:
    path = fault.where.removeprefix(f"{owner}.")
    place = composed.place_of(path)
    return fault if place is None else fault_at(place, fault.message, hint=fault.hint, key=path)


def given_twice(overrides: Sequence[Override], schema: Schema) -> Iterator[str]:
    """Return a note for each key that is set more than once; the last value counts."""
    counts = Counter(one.path for one in overrides if one.kind in _REPLACING and not one.names_group)
    last = {one.path: one.text for one in overrides}
    for path, count in counts.items():
        if count > 1:
            leaf = schema.leaves.get(path)
            texts = [one.text.partition("=")[2] for one in overrides if one.path == path and one.kind in _REPLACING]
            meant = shlex.quote(f"{path}=[{','.join(texts)}]")
            several = f"; for all of them: {meant}" if leaf is not None and leaf.faults_in is not None else ""
            yield f"{path} is given {'twice' if count == 2 else f'{count} times'}: {last[path]} counts{several}"


def swept_lists(overrides: Sequence[Override], schema: Schema) -> Iterator[str]:
    """Return a note for each key that takes a list and was given items without brackets: that makes a sweep."""
    for one in overrides:
        leaf = schema.leaves.get(one.path)
        if leaf is None or not leaf.is_list or not isinstance(one.value, Axis):
            continue
        choices = one.value.choices
        if isinstance(choices, ListedAxisValues) and all(
            isinstance(choice.value, str | int | float) for choice in choices
        ):
            meant = shlex.quote(f"{one.text[: one.column - 1]}[{one.text[one.column - 1 :]}]")
            both = "both" if choices.count == 2 else f"all {choices.count}"
            yield f"{one.text} is a sweep of {choices.count} trials, one value each; for one run with {both}: {meant}"


class TrialDiagnostics:
    """Collects the faults of trials."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], tuple[str, Diagnostic]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._error: InvalidInput | None = None
        self._lacks: dict[MissingRepoFiles, None] = {}
        self._is_lacking = True
        """True while every fault is a file that can be fetched."""
        self._seen = 0

    @contextmanager
    def of(self, label: str) -> Iterator[None]:
        """Collect the faults of one trial; without a sweep (empty label) they are raised as they are."""
        self._seen += 1
        try:
            yield
        except InvalidInput as error:
            if not label:
                raise
            self._error = self._error or error
            self._lacks |= dict.fromkeys(error.lacks)
            self._is_lacking = self._is_lacking and bool(error.lacks)
            for fault in error.faults:
                known = (fault.where, fault.message)
                self._first.setdefault(known, (label, fault))
                self._counts[known] += 1

    def refuse(self) -> None:
        """Raise if there are faults. A fault that all trials have is reported without a trial."""
        if self._error is None:
            return
        faults = []
        for known, (label, fault) in self._first.items():
            where = "" if self._counts[known] == self._seen else _in_trials(label, self._counts[known])
            faults.append(Diagnostic(fault.where, f"{fault.message}{where}", fault.hint, fault.shown))
        message = str(faults[0]) if len(faults) == 1 else f"{len(faults)} errors in the trials of this sweep"
        lacks = tuple(self._lacks) if self._is_lacking else ()
        raise type(self._error)(message, faults=tuple(faults), hint=self._error.hint, lacks=lacks)


def _in_trials(label: str, count: int) -> str:
    others = {1: "", 2: " and 1 more trial"}.get(count, f" and {count - 1:,} more trials")
    return f", with {label}{others}"


def _wrong_words(
    program: ProgramWords | None,
    composed: ComposedConfig | None,
    overrides: Sequence[Override],
    words: Sequence[str],
    files: Sequence[str],
    schema: Schema,
) -> list[Diagnostic]:
    """Return a fault for each placeholder without a value; none if the files, which may set it, can't be read."""
    if program is None:
        return []
    if composed is not None:
        _, params = split(composed.values, schema.leaves)
        swept = only_params(paths_of(composed.sweep), schema.leaves) if composed.sweep else []
        # Beside a word that could not be read, what it would have set is not missing as well.
        torn = _keys_of(words) if len(overrides) < len(words) else ()
        return program.faults([*flat(params), *swept, *torn], schema.leaves)
    if files:
        return []
    return program.faults([*_keys_of(words), *(one.path for one in overrides)], schema.leaves)


def _keys_of(words: Iterable[str]) -> set[str]:
    """Return the keys that words seem to set, also words that can't be parsed."""
    return {found[1] for word in words if (found := _KEY.match(word))}


def _error_of(
    faults: list[Diagnostic], wrong_words: list[Diagnostic], *, owner: str, hint: str, is_typed: bool
) -> InvalidInput:
    found = tuple(dict.fromkeys([*faults, *wrong_words]))
    kind = InvalidProgram if not faults else InvalidArgs if is_typed else InvalidConfig
    where = f"the arguments of {owner}" if is_typed else "the configuration"
    if not faults:
        where = "the program's words"
    message = str(found[0]) if len(found) == 1 else f"{len(found)} errors in {where}"
    if is_typed:
        hint = hint or f"stoker recipes show {owner}"
    return kind(message, faults=found, hint=hint)


def _position(fault: Diagnostic) -> int:
    """Return the position of the argument that a fault is about, from 1; 0 if none."""
    found = _ARGUMENT.match(fault.where)
    return int(found[1]) if found else 0


# Where data of a submitted job may come from beside a path.


@frozen
class FoundRepository:
    """A repository of the hub at the commit that a revision is now."""

    repo: str
    """`org/name`, or `datasets/org/name`."""
    commit: str
    files: int
    size_bytes: int


def _no_store(text: str) -> Record:
    raise BadInput(f"nothing goes by {text!r} here")


def _no_hub(text: str) -> FoundRepository:
    raise BadInput(f"there is no hub here to ask for {text}")


def _no_file(repo: str, name: str) -> str:
    raise BadInput(f"there is no hub here to ask for {name} of {repo}")


def _silently(_what: str, _size_bytes: int | None) -> AbstractContextManager[Heed]:
    return nullcontext(lambda _: None)


@frozen
class DataPlaces:
    """What submitting data needs of this machine."""

    host: str = ""
    """What this machine is called: workers of the same one read its files in place."""
    find_kept: Callable[[str], Record] = _no_store
    """Gives what a name or a digest stands for in this machine's store. Raises `StokerError`."""
    find_repository: Callable[[str], FoundRepository] = _no_hub
    """Asks the hub for `org/name[@revision]`. Raises `StokerError`."""
    find_file: Callable[[str, str], str] = _no_file
    """Has one small file of `org/name@commit` in this machine's cache; gives the folder that it is in. Raises
    `StokerError`."""
    reading: Callable[[str, int | None], AbstractContextManager[Heed]] = _silently
    """Opens a display for what is read: its name, and how many bytes if that is known."""
