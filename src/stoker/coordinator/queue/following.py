"""Jobs that come after others: how many they still wait for, counted anew whenever one of those is done or undone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from stoker.coordinator.queue.moves import enter_line, leave_line
from stoker.coordinator.queue.rows import JobRow
from stoker.coordinator.queue.turn import Turn
from stoker.coordinator.queue.waiting import Ready
from stoker.model.fleet_events import FleetKinds
from stoker.model.lifecycle import JobState


def update_followers(turn: Turn) -> None:
    """Count again for everybody who comes after a job that completed, or completed no more, in this turn."""
    done = [*turn.completed, *turn.reopened]
    if not done or not turn.book.has_after:
        return
    followers = {seq for (seq,) in turn.read(turn.queries.followers, seqs=turn.many(done))}
    if followers:
        recount(turn, followers)


def recount(turn: Turn, seqs: Iterable[int]) -> None:
    """Count again what these jobs wait for."""
    asked = turn.many(sorted(seqs))
    blockers = Counter(
        seq for seq, _, state in turn.read(turn.queries.before, seqs=asked) if state != JobState.COMPLETED.value
    )
    for row in (JobRow(*row) for row in turn.read(turn.queries.jobs_by_seq, seqs=asked)):
        if blockers[row.seq] != row.blockers:
            _set_blockers(turn, row, blockers[row.seq])


def _set_blockers(turn: Turn, row: JobRow, blockers: int) -> None:
    is_pending = row.state == JobState.PENDING.value
    is_ready = is_pending and not blockers and row.not_before_s <= turn.now_s
    since_s = turn.now_s if is_ready else row.since_s
    turn.move(row.seq)
    turn.write(
        turn.statements.block_job,
        at_seq=row.seq,
        was_epoch=row.epoch,
        was_state=row.state,
        blockers=blockers,
        is_ready=is_ready,
        since_s=since_s,
        changed_s=turn.now_s,
    )
    live = turn.book.live_by_seq.get(row.seq)
    if live is not None:
        live.blockers = blockers
    if row.is_ready and not is_ready:
        leave_line(turn, row.class_id, row.priority, row.seq)
    elif is_ready and not row.is_ready:
        enter_line(turn, Ready.of(row._replace(since_s=since_s)))
        turn.tell(FleetKinds.JOB_READY, seq=row.seq, epoch=row.epoch)
    elif is_pending and not blockers:
        turn.book.next_delay_s = min(turn.book.next_delay_s, row.not_before_s)
