"""Submit: all jobs of a submission are taken together or not at all, and the same submission again changes nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

from stoker.coordinator.queue.arranging import Arrangement, arrange
from stoker.coordinator.queue.classes import class_of
from stoker.coordinator.queue.declaring import put_policies
from stoker.coordinator.queue.drafting import Drafts
from stoker.coordinator.queue.following import recount
from stoker.coordinator.queue.moves import enter_line, leave_line, plain
from stoker.coordinator.queue.operating import requeue_row
from stoker.coordinator.queue.outcomes import Fate, decide
from stoker.coordinator.queue.rows import JobRow
from stoker.coordinator.queue.turn import Turn
from stoker.coordinator.queue.waiting import Ready
from stoker.model.fleet_errors import Conflict
from stoker.model.fleet_events import FleetKinds
from stoker.model.lifecycle import JobState
from stoker.wire.orders import OrderOutcome, Outcome, Submission, Submitted


def submit(turn: Turn, asked: Submission, drafts: Drafts) -> Submitted:
    """Take a submission in, or say what it would change."""
    if asked.key and not asked.dry_run:
        before = turn.read(turn.queries.submission, of_key=plain(asked.key))
        if before:
            return _again(asked, drafts, *before[0])
    ids = [one.order.id for one in drafts.all]
    known = {row[1]: JobRow(*row) for row in turn.read(turn.queries.jobs_by_id, ids=turn.many(ids))}
    fates = [decide(one, known.get(one.order.id), asked.on_changed_code) for one in drafts.all]
    arrangement = arrange(turn, fates)
    answer = _answer(turn, asked, drafts, fates)
    if asked.dry_run:
        return answer
    if asked.hosts:
        put_policies(turn, asked.hosts, source=plain(asked.source))
    _apply(turn, asked, fates, arrangement)
    if asked.key:
        turn.write(
            turn.statements.add_submission,
            key=plain(asked.key),
            payload=drafts.payload,
            at_s=turn.now_s,
            answer=answer.model_dump_json(),
        )
    return answer


def _again(asked: Submission, drafts: Drafts, payload: str, answer: str) -> Submitted:
    if payload != drafts.payload:
        raise Conflict(
            f"the key {asked.key!r} already stands for another submission",
            hint="use a new key for other jobs",
            key=asked.key,
        )
    return Submitted.model_validate_json(answer)


def _answer(turn: Turn, asked: Submission, drafts: Drafts, fates: list[Fate]) -> Submitted:
    by_id = {fate.draft.order.id: fate for fate in fates}
    jobs = []
    for order in asked.jobs:
        fate = by_id[order.id]
        shown = f"{order.name}/{order.number}" if order.number else order.name
        is_twin = fate.draft.order is not order
        jobs.append(
            OrderOutcome(
                id=order.id,
                name=order.name,
                number=order.number,
                outcome=Outcome.KNOWN if is_twin else fate.outcome,
                state=fate.state,
                changes=(f"the same job as {drafts.twins.get(shown, fate.draft.shown)}",) if is_twin else fate.changes,
            )
        )
    counts = Counter(job.outcome.value for job in jobs)
    vanished: list[str] = []
    if asked.source:
        rows = turn.read(turn.queries.of_source, of_source=plain(asked.source))
        vanished = [f"{name}/{number}" if number else name for id, name, number in rows if id not in by_id]
    return Submitted(jobs=tuple(jobs), counts=dict(counts), vanished=tuple(vanished), dry_run=asked.dry_run)


def _apply(turn: Turn, asked: Submission, fates: list[Fate], arrangement: Arrangement) -> None:
    for fate in fates:
        seq = arrangement.seqs[fate.draft.order.id]
        if fate.row is None:
            _add(turn, asked, fate, seq, arrangement.blockers.get(seq, 0))
        elif fate.outcome is Outcome.REQUEUED:
            requeue_row(turn, fate.row, spec=fate.draft.text, code=fate.draft.code, why="its code is another now")
        elif fate.changes:
            _change(turn, asked, fate, fate.row)
    turn.book.seq = max(turn.book.seq, *arrangement.seqs.values(), 0)
    known = {fate.row.seq for fate in fates if fate.row is not None}
    for seq, befores in arrangement.befores.items():
        if seq in known:
            turn.write(turn.statements.drop_after, at_seq=seq)
        for before_seq in befores:
            turn.write(turn.statements.add_after, seq=seq, before_seq=before_seq)
            turn.book.has_after = True
    rearranged = known & arrangement.befores.keys()
    if rearranged:
        recount(turn, rearranged)


def _add(turn: Turn, asked: Submission, fate: Fate, seq: int, blockers: int) -> None:
    order = fate.draft.order
    class_id = class_of(turn, fate.draft.placed_by)
    is_ready = not blockers
    turn.write(
        turn.statements.add_job,
        seq=seq,
        id=order.id,
        name=order.name,
        number=order.number,
        label=order.label,
        recipe=order.recipe,
        mode=order.mode,
        spec=fate.draft.text,
        code=fate.draft.code,
        class_id=class_id,
        priority=order.priority,
        state="pending",
        is_ready=is_ready,
        blockers=blockers,
        since_s=turn.now_s,
        submitter=plain(asked.submitter),
        source=plain(asked.source),
        submitted_s=turn.now_s,
        changed_s=turn.now_s,
    )
    turn.tell(FleetKinds.JOB_SUBMITTED, seq=seq, epoch=0, to_state="pending")
    turn.count_move("", "pending")
    if is_ready:
        enter_line(
            turn,
            Ready(seq, order.id, class_id, order.priority, turn.now_s, 0, 0, 0, 0, 0, fate.draft.text, ""),
        )


def _change(turn: Turn, asked: Submission, fate: Fate, row: JobRow) -> None:
    """Let a known job be as it is asked for now, in the state it is in."""
    order, text, code = fate.draft.order, fate.draft.text, fate.draft.code or row.code
    if fate.outcome is Outcome.KEPT:
        # Its result was made by the code that is written there.
        code = row.code
    new: dict[str, Any] = {
        "class_id": class_of(turn, fate.draft.placed_by),
        "name": order.name,
        "number": order.number,
        "label": order.label,
        "priority": order.priority if "priority" in fate.changes else row.priority,
        "source": plain(asked.source) or row.source,
    }
    turn.move(row.seq)
    turn.write(
        turn.statements.change_job,
        at_seq=row.seq,
        was_epoch=row.epoch,
        was_state=row.state,
        spec=text,
        code=code,
        blockers=row.blockers,
        is_ready=bool(row.is_ready),
        **new,
    )
    turn.tell(FleetKinds.JOB_CHANGED, seq=row.seq, epoch=row.epoch, fields={"changes": list(fate.changes)})
    live = turn.book.live_by_seq.get(row.seq)
    if live is not None:
        live.class_id, live.priority, live.attempts = new["class_id"], new["priority"], order.attempts
    elif row.is_ready and row.state == JobState.PENDING.value:
        leave_line(turn, row.class_id, row.priority, row.seq)
        moved = row._replace(class_id=new["class_id"], priority=new["priority"], spec=text)
        enter_line(turn, Ready(*moved[:12]))
