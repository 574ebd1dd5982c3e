"""Jobs: the spec of one, its id, the ids of its attempts, and its states.

A job's id is a digest of everything that changes its result and nothing else. An attempt's id sorts by time and is
short enough to type a prefix of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

from stoker.core.device import Backend
from stoker.core.digests import Digest, digest_encoded, encode
from stoker.core.errors import InvalidTransition
from stoker.core.frozen import changed, defaults_of, field_names, fields_of, fresh, frozen
from stoker.core.leases import Partition
from stoker.core.machine import DevicePreference, Requirements, SchedulableJob
from stoker.core.text import point_name

JOB_ID_SCHEMA = 1


class InputKind(StrEnum):
    """What an input is."""

    TREE = "tree"
    """A folder, by its tree's digest."""
    FILE = "file"
    """One file: a tree of one entry, by that tree's digest."""
    REPO = "repo"
    """A repository of the hub at a commit; each machine fetches it itself."""


@frozen
class JobInput:
    """Something that a job reads and that has to be on its machine before it starts."""

    where: str
    """What gets its path: `env:DATA`, a variable; `arg:data` or `arg:inputs.0`, an argument of the recipe.

    `at:data/corpus`: it appears at that path below the program's folder.
    """
    kind: InputKind
    tree: str = ""
    name: str = ""
    """What the file or folder is called; a part of a path, and no way to another place."""
    size_bytes: int = 0
    files: int = 0
    path: str = ""
    """Its path on the submitting machine: a worker of the same machine uses it there, if its digest is still that."""
    host: str = ""
    """Whose path that is: the submitting machine's name."""
    repo: str = ""
    """`org/name@commit`."""


@frozen
class EnvironmentChoice:
    """One way to the interpreter that runs a program, for machines of one sort."""

    platform: str = ""
    """`linux-aarch64`, or `linux-aarch64-cp310`; empty: any that no other choice names."""
    kind: str
    """`uv.lock`, `requirements`, `pyproject` or `python`."""
    path: str = ""
    """The file, in the code's tree; of `python`, an interpreter on the machine itself."""
    digest: str = ""
    """Of all files that the environment is made from; of `python` empty, or `environment_messages.own_digest`."""
    python: str = ""
    """Which version it requires: `3.11`, `>=3.10`."""
    extras: tuple[str, ...] = ()
    """Of a project's optional dependencies, those that it installs."""
    refused: dict[str, str] = fresh(factory=dict)
    """Platform → why it can't be made there, as far as its files show. No part of its digest."""


@frozen
class JobSpec:
    """One job: whole, checked and default-filled, from submit to the process that runs it.

    Its id is made from what changes its result. `protocol.job_messages` checks one that comes from another program.
    """

    id: str
    name: str
    number: int = 0
    """Of a sweep's points, from 1; 0: no sweep."""
    label: str = ""
    """`lr=0.001,seed=1`: a sweep point's folder."""
    point: dict[str, Any] = fresh(factory=dict)
    recipe: str
    schema_version: int = 1
    mode: str = ""
    args: dict[str, Any] = fresh(factory=dict)
    """As the recipe takes them; paths made whole."""
    words: tuple[str, ...] = ()
    """A program's words before its places were filled: `--lr {lr}`; empty: as in `args`."""
    identity: dict[str, Any] = fresh(factory=dict)
    """Those of `args` that belong to the id, files as their digests."""
    seed: int | None = None
    split_recipe: Any = None
    train_hosts: tuple[str, ...] = ()
    folder: str = ""
    """Where it was submitted: a program runs there."""
    project: str = ""
    """Which project a program belongs to, wherever it lies: part of its id. `COMMIT/sub/folder`, or a path."""
    code_tree: str = ""
    """The tree that a program runs in, laid out for each attempt; empty: it runs in `folder` itself."""
    code_folder: str = ""
    """Where in that tree it runs; empty: at its top."""
    commit: str = ""
    """What that tree stands on: `HASH`, `HASH+3` with so many uncommitted changes."""
    inputs: tuple[JobInput, ...] = ()
    environment: tuple[EnvironmentChoice, ...] = ()
    """The first choice that names a machine's platform counts; none: the machine's own interpreter."""
    code: dict[str, str] = fresh(factory=dict)
    """File or module → digest, as they were at submission; recorded with the result, no part of the id."""
    priority: int = 0
    requirements: Requirements = Requirements()
    allowed_hosts: tuple[str, ...] = ()
    prefer_hosts: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    """Names of jobs (of a sweep: all its points), in this submission or known already."""
    secrets: tuple[str, ...] = ()
    """Names of variables taken from the worker's own environment; never their values."""
    attempts: int = 1
    """How many failures of its own it may have, the first included."""
    timeout_s: float | None = None
    expected_s: float | None = None
    """How long it is expected to take: on a device of speed 1, or on the only machine that it allows. None: not stated.
    No part of the id."""
    on_partition: Partition = Partition.STOP

    @property
    def shown(self) -> str:
        """What people call the job."""
        return point_name(self.name, self.number)

    def to_json(self) -> dict[str, Any]:
        """Return its fields that are not defaults, for Stoker itself; `protocol.job_messages` writes it for others."""
        fields = {name: value for name, value in fields_of(self).items() if value != _DEFAULTS.get(name, _REQUIRED)}
        for name in fields.keys() & {"inputs", "environment"}:
            fields[name] = [fields_of(one) for one in fields[name]]
        if "requirements" in fields:
            fields["requirements"] = fields_of(self.requirements)
        return fields

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> JobSpec:
        """Read what `to_json` returned, also of another version: unknown fields are skipped, missing ones are defaults.

        Raises `ValueError`, `KeyError` or `TypeError` on anything else.
        """
        fields = _known(cls, raw)
        for name, value in fields.items():
            if type(value) is list:
                fields[name] = tuple(value)
        for name, read in _NESTED.items():
            if name in fields:
                fields[name] = read(fields[name])
        for name, value in fields.items():
            default = _DEFAULTS.get(name, "")
            if default is not None and not isinstance(value, type(default)):
                message = f"{name}: {value!r} is no {type(default).__name__}"
                raise TypeError(message)
        return cls(**fields)

    def schedulable(self) -> SchedulableJob:
        """Return it as placement sees it."""
        return SchedulableJob(
            name=self.name,
            model=self.recipe,
            requirements=self.requirements,
            priority=self.priority,
            allowed_hosts=self.allowed_hosts,
            preferred_hosts=self.prefer_hosts,
        )


def _known(kind: type, raw: Mapping[str, Any]) -> dict[str, Any]:
    return {name: raw[name] for name in field_names(kind) if name in raw}


def _read_input(raw: Mapping[str, Any]) -> JobInput:
    return JobInput(**{**_known(JobInput, raw), "kind": InputKind(raw["kind"])})


def _read_choice(raw: Mapping[str, Any]) -> EnvironmentChoice:
    return EnvironmentChoice(**{**_known(EnvironmentChoice, raw), "extras": tuple(raw["extras"])})


def _read_requirements(raw: Mapping[str, Any]) -> Requirements:
    known = _known(Requirements, raw)
    return Requirements(**{**known, "wish": DevicePreference(raw["wish"]), "backend": Backend(raw["backend"])})


_DEFAULTS = defaults_of(JobSpec)
_REQUIRED = object()
_NESTED: dict[str, Callable[[Any], Any]] = {
    "inputs": lambda raw: tuple(map(_read_input, raw)),
    "environment": lambda raw: tuple(map(_read_choice, raw)),
    "requirements": _read_requirements,
    "on_partition": Partition,
}

# What each field of a `JobSpec` is for. A field that is in none of these sets is sent to the worker, and a change of it
# may matter to a machine.

FOR_PEOPLE = frozenset({"name", "number", "label", "point", "words"})
"""Fields by which people know a job: they do not matter to a machine."""
OF_THE_QUEUE = frozenset(
    {"project", "priority", "requirements", "allowed_hosts", "prefer_hosts", "after", "attempts", "expected_s"}
)
"""Fields that decide where and when it runs: a worker does not get them."""
OF_THE_CODE = frozenset({"code", "code_tree", "code_folder", "commit", "folder", "project"})
"""Fields of the code and its place."""
JOB_VARIABLES = {"STOKER_JOB": "id", "STOKER_JOB_NAME": "name", "STOKER_SEED": "seed"}
"""Variables of a job's programs, each with the field that it holds."""


def variables_of(spec: JobSpec) -> dict[str, str]:
    """Return the variables that a job's programs get; none for a field that is not set."""
    values = {name: getattr(spec, field) for name, field in JOB_VARIABLES.items()}
    return {name: str(value) for name, value in values.items() if value not in (None, "")}


def job_id(  # noqa: PLR0913 - everything that a job is made of
    *,
    recipe: str,
    schema_version: int,
    args: Mapping[str, object],
    mode: str = "",
    seed: int | None = None,
    split_recipe: object = None,
    train_hosts: Sequence[str] = (),
) -> Digest:
    """Return the id of a job from what it is; `args` are identity args, defaults filled, files as their digests.

    `seed` is one that is not among the args already.
    """
    text = split_recipe if split_recipe is None or type(split_recipe) is str else encode(split_recipe)
    tail = _tail(recipe, schema_version, mode, seed, text, tuple(sorted(train_hosts)))
    return digest_encoded("job", b"%bm%d:%b%b" % (_HEAD, len(args), _encoded_pairs(args), tail))


def is_content(wanted: Any) -> bool:
    """Return True if this stands in an identity for a path: the digest of what lies there."""
    if type(wanted) is not dict or wanted.keys() != {_CONTENT}:
        return False
    digest = wanted[_CONTENT]
    return type(digest) is str and digest.startswith(_DIGESTS)


def contents_of(wanted: Any, value: Any) -> Iterator[tuple[str, str]]:
    """Return each path inside an argument with its digest in the identity (`wanted`), in order."""
    if type(value) is str:
        if is_content(wanted):
            yield value, wanted[_CONTENT]
    elif type(wanted) in _LISTS and type(value) in _LISTS:
        for one, inner in zip(wanted, value, strict=False):
            yield from contents_of(one, inner)
    elif type(wanted) is dict and type(value) is dict:
        for key, one in wanted.items():
            yield from contents_of(one, value.get(key))


class JobIds:
    """Ids of many jobs that share most of their args. The shared args must not change meanwhile."""

    def __init__(
        self,
        *,
        recipe: str,
        schema_version: int,
        args: Mapping[str, object],
        mode: str = "",
        split_recipe: object = None,
        train_hosts: Sequence[str] = (),
    ) -> None:
        text = split_recipe if split_recipe is None or type(split_recipe) is str else encode(split_recipe)
        self._tail = _tail(recipe, schema_version, mode, None, text, tuple(sorted(train_hosts)))
        self._pairs = {key: encode(key) + encode(value) for key, value in args.items()}
        self._sorted: dict[tuple[str, ...], list[str]] = {}

    def of(self, own: Mapping[str, object]) -> Digest:
        """Return the id of a job whose args are those, with its own beside or in place of them."""
        names = tuple(own)
        keys = self._sorted.get(names)
        if keys is None:
            keys = self._sorted[names] = sorted({*self._pairs, *names})
        pairs = {**self._pairs, **{key: encode(key) + encode(value) for key, value in own.items()}}
        whole = b"".join([pairs[key] for key in keys])
        return digest_encoded("job", b"%bm%d:%b%b" % (_HEAD, len(keys), whole, self._tail))


_CONTENT = "content"
_DIGESTS = ("sha256:", "tree:", "repo:")
_LISTS = (list, tuple)
# A map's keys stand sorted, and `args` sorts before all others.
_HEAD = b"m8:" + encode("args")
# Jobs come by the ten thousand, with the same keys and most of their values in common with the one before. By their
# keys as they stand: each key in sorted order (text sorts as its UTF-8 does), encoded, with the value that was met last
# and both encoded. An entry is one object, so that it is whole in whichever thread it is read.
_met: dict[tuple[str, ...], list[tuple[str, bytes, object, bytes]]] = {}
_MOST_MET = 256
_MOST_KEYS = 200
_LONGEST_KEPT = 1000
# An object keeps its value only if it is immutable.
_LASTING = frozenset({str, int, float, bool, type(None)})
_NOT_MET = object()


def _encoded_pairs(args: Mapping[str, object]) -> bytes:
    """Encode keys with their values, as they stand in an encoded map."""
    keys = tuple(args)
    met = _met.get(keys)
    if met is None:
        met = [(key, encode(key), _NOT_MET, b"") for key in sorted(keys)]
        if len(_met) < _MOST_MET and len(keys) <= _MOST_KEYS:
            _met[keys] = met
    pairs = []
    for at, (key, head, last, pair) in enumerate(met):
        value = args[key]
        if value is last or (type(value) is type(last) is not float and value == last):
            # Not so floats: 0.0 equals -0.0, and they are two values.
            pairs.append(pair)
            continue
        made = head + encode(value)
        pairs.append(made)
        if type(value) in _LASTING and len(made) <= _LONGEST_KEPT:
            met[at] = (key, head, value, made)
    return b"".join(pairs)


@lru_cache(maxsize=256, typed=True)
def _tail(
    recipe: str,
    schema_version: int,
    mode: str,
    seed: int | None,
    split_recipe: str | bytes | None,
    train_hosts: tuple[str, ...],
) -> bytes:
    """Encode everything but the args; a `split_recipe` in bytes is encoded already."""
    split = split_recipe if isinstance(split_recipe, bytes) else encode(split_recipe)
    return b"".join(
        (
            encode("mode") + encode(mode),
            encode("recipe") + encode(recipe),
            encode("recipe_schema") + encode(schema_version),
            encode("schema") + encode(JOB_ID_SCHEMA),
            encode("seed") + encode(seed),
            encode("split_recipe") + split,
            encode("train_hosts") + encode(train_hosts),
        )
    )


def attempt_id(started: datetime, entropy: int) -> str:
    """Return an attempt's id: `20261115-031502-7f3a09c1`, later ones sorting after earlier ones."""
    return f"{started:%Y%m%d-%H%M%S}-{entropy & 0xFFFFFFFF:08x}"


class JobState(StrEnum):
    """The state of a job.

    A job of `stoker run` goes through the same states; it claims itself.
    """

    PENDING = "pending"
    CLAIMED = "claimed"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        return self in _TERMINAL


class JobTransition(StrEnum):
    """What may happen to a job; each verb has one meaning."""

    CLAIM = "claim"
    START = "start"
    FINISH = "finish"
    FAIL = "fail"
    CANCEL = "cancel"
    RELEASE = "release"
    EXPIRE = "expire"
    RETRY = "retry"
    REQUEUE = "requeue"


_TERMINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})

_MOVES: dict[tuple[JobState, JobTransition], JobState] = {
    (JobState.PENDING, JobTransition.CLAIM): JobState.CLAIMED,
    (JobState.PENDING, JobTransition.CANCEL): JobState.CANCELLED,
    (JobState.CLAIMED, JobTransition.START): JobState.RUNNING,
    (JobState.CLAIMED, JobTransition.FAIL): JobState.FAILED,
    (JobState.CLAIMED, JobTransition.CANCEL): JobState.CANCELLED,
    (JobState.CLAIMED, JobTransition.RELEASE): JobState.PENDING,
    (JobState.CLAIMED, JobTransition.EXPIRE): JobState.PENDING,
    (JobState.CLAIMED, JobTransition.RETRY): JobState.PENDING,
    (JobState.RUNNING, JobTransition.FINISH): JobState.COMPLETED,
    (JobState.RUNNING, JobTransition.FAIL): JobState.FAILED,
    (JobState.RUNNING, JobTransition.CANCEL): JobState.CANCELLED,
    (JobState.RUNNING, JobTransition.RELEASE): JobState.PENDING,
    (JobState.RUNNING, JobTransition.EXPIRE): JobState.PENDING,
    (JobState.RUNNING, JobTransition.RETRY): JobState.PENDING,
    (JobState.COMPLETED, JobTransition.REQUEUE): JobState.PENDING,
    (JobState.FAILED, JobTransition.REQUEUE): JobState.PENDING,
    (JobState.CANCELLED, JobTransition.REQUEUE): JobState.PENDING,
}


@frozen
class JobHistoryEntry:
    """One line of a job's story."""

    at_s: float
    move: JobTransition
    to: JobState
    why: str = ""


@frozen
class JobLife:
    """Where a job stands and how it came there."""

    state: JobState = JobState.PENDING
    epoch: int = 0
    """Rises with every claim and every requeue, so that an old claim is recognised as old."""
    story: tuple[JobHistoryEntry, ...] = ()


def move(life: JobLife, verb: JobTransition, *, at_s: float, why: str = "") -> JobLife:
    """Return the job's life after a move, or refuse with the story so far."""
    target = _MOVES.get((life.state, verb))
    if target is None:
        story = ", ".join(f"{moment.move} → {moment.to}" for moment in life.story) or "no history"
        raise InvalidTransition(
            f"a {life.state} job can't {verb} ({story})",
            hint="a finished job starts again with `requeue`" if life.state.is_terminal else "",
            state=str(life.state),
            move=str(verb),
        )
    epoch = life.epoch + 1 if verb in (JobTransition.CLAIM, JobTransition.REQUEUE) else life.epoch
    return changed(
        life, state=target, epoch=epoch, story=(*life.story, JobHistoryEntry(at_s=at_s, move=verb, to=target, why=why))
    )


@frozen
class TrialNodes:
    """What of the joint plan one trial is."""

    final: str
    keep: tuple[str, ...]
    nodes: tuple[str, ...]
