"""The life of a job: states, moves, and the refusal of every other move with the job's story.

    pending → claimed → running → completed | failed | cancelled
    claimed | running → pending        by release, expiry or retry
    terminal → pending                 only by an operator's requeue, under a higher epoch

A job that runs here, now (`stoker run`) goes the same way; it claims itself.
"""

from __future__ import annotations

from enum import StrEnum

from stoker.model.errors import IllegalMove
from stoker.model.frozen import changed, frozen


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


class Move(StrEnum):
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

_MOVES: dict[tuple[JobState, Move], JobState] = {
    (JobState.PENDING, Move.CLAIM): JobState.CLAIMED,
    (JobState.PENDING, Move.CANCEL): JobState.CANCELLED,
    (JobState.CLAIMED, Move.START): JobState.RUNNING,
    (JobState.CLAIMED, Move.FAIL): JobState.FAILED,
    (JobState.CLAIMED, Move.CANCEL): JobState.CANCELLED,
    (JobState.CLAIMED, Move.RELEASE): JobState.PENDING,
    (JobState.CLAIMED, Move.EXPIRE): JobState.PENDING,
    (JobState.CLAIMED, Move.RETRY): JobState.PENDING,
    (JobState.RUNNING, Move.FINISH): JobState.COMPLETED,
    (JobState.RUNNING, Move.FAIL): JobState.FAILED,
    (JobState.RUNNING, Move.CANCEL): JobState.CANCELLED,
    (JobState.RUNNING, Move.RELEASE): JobState.PENDING,
    (JobState.RUNNING, Move.EXPIRE): JobState.PENDING,
    (JobState.RUNNING, Move.RETRY): JobState.PENDING,
    (JobState.COMPLETED, Move.REQUEUE): JobState.PENDING,
    (JobState.FAILED, Move.REQUEUE): JobState.PENDING,
    (JobState.CANCELLED, Move.REQUEUE): JobState.PENDING,
}


@frozen
class Moment:
    """One line of a job's story."""

    at_s: float
    move: Move
    to: JobState
    why: str = ""


@frozen
class JobLife:
    """Where a job stands and how it came there."""

    state: JobState = JobState.PENDING
    epoch: int = 0
    """Rises with every claim and every requeue, so that an old claim is recognised as old."""
    story: tuple[Moment, ...] = ()


def move(life: JobLife, verb: Move, *, at_s: float, why: str = "") -> JobLife:
    """Give the job's life after a move, or refuse with the story so far."""
    target = _MOVES.get((life.state, verb))
    if target is None:
        told = ", ".join(f"{moment.move} → {moment.to}" for moment in life.story) or "nothing happened to it yet"
        raise IllegalMove(
            f"a {life.state} job can't {verb} ({told})",
            hint="a finished job starts again with `requeue`" if life.state.is_terminal else "",
            state=str(life.state),
            move=str(verb),
        )
    epoch = life.epoch + 1 if verb in (Move.CLAIM, Move.REQUEUE) else life.epoch
    return changed(
        life, state=target, epoch=epoch, story=(*life.story, Moment(at_s=at_s, move=verb, to=target, why=why))
    )
