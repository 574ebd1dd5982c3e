"""Ids: of jobs (what is wanted) and of attempts (one try at it).

A job's id is a digest of everything that changes its result and nothing else. An attempt's id sorts by time and is
short enough to type a prefix of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

from stoker.core.digests import Digest, digest_encoded, encode
from stoker.core.errors import InvalidTransition
from stoker.core.frozen import changed, frozen

JOB_ID_SCHEMA = 1


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
    """Ids of many jobs that have most of their args in common. Nobody changes those as long as ids are made."""

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
# The same object is the same value only if nobody can change it.
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


# The life of a job: states, moves, and the refusal of every other move with the job's story.
#
# A job that runs here, now (`stoker run`) goes the same way; it claims itself.


class JobState(StrEnum):
    """Where a job stands."""

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
        told = ", ".join(f"{moment.move} → {moment.to}" for moment in life.story) or "nothing happened to it yet"
        raise InvalidTransition(
            f"a {life.state} job can't {verb} ({told})",
            hint="a finished job starts again with `requeue`" if life.state.is_terminal else "",
            state=str(life.state),
            move=str(verb),
        )
    epoch = life.epoch + 1 if verb in (JobTransition.CLAIM, JobTransition.REQUEUE) else life.epoch
    return changed(
        life, state=target, epoch=epoch, story=(*life.story, JobHistoryEntry(at_s=at_s, move=verb, to=target, why=why))
    )
