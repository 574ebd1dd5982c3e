"""Submit: all jobs of a submission are taken together or not at all, and the same submission again changes nothing."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

from stoker.coordinator.queue.arranging import Arrangement, arrange
from stoker.coordinator.queue.classes import class_of, like_of
from stoker.coordinator.queue.commands import Submit
from stoker.coordinator.queue.declaring import put_policies
from stoker.coordinator.queue.drafting import Draft, Drafts
from stoker.coordinator.queue.following import recount
from stoker.coordinator.queue.moves import enter_line, leave_line, plain, telling
from stoker.coordinator.queue.operating import requeue_row
from stoker.coordinator.queue.outcomes import CODE_TREE, Fate, decide
from stoker.coordinator.queue.replacing import replaced, shown_left, what_differs
from stoker.coordinator.queue.rows import JobRow
from stoker.coordinator.queue.turn import Turn
from stoker.coordinator.queue.waiting import Ready
from stoker.model.fleet_errors import Conflict
from stoker.model.fleet_events import FleetKinds
from stoker.model.json_text import loads
from stoker.model.lifecycle import JobState
from stoker.wire.codec import alike
from stoker.wire.orders import PREFIX, EnvironmentChoice, OrderOutcome, Outcome, Submission, Submitted

_MOST_COMPARED = 1000
_ABOUT_CODE = frozenset({"code", CODE_TREE})
_CURES_NOTHING = frozenset({"name", "number", "label", "point", "priority", "after", "source", "expected_s"})
"""Changes of a job that are nothing to the machine that declined it."""


def submit(turn: Turn, command: Submit, drafts: Drafts) -> Submitted:
    """Take a submission in, or say what it would change."""
    asked = command.asked
    if asked.key and not asked.dry_run:
        before = turn.read(turn.queries.submission, of_key=plain(asked.key))
        if before:
            return _again(asked, drafts, *before[0])
    ids = [one.order.id for one in drafts.all]
    known = {row[1]: JobRow(*row) for row in turn.read(turn.queries.jobs_by_id, ids=turn.many(ids))}
    fates = [
        decide(one, known.get(one.order.id), asked.on_changed_code, plain(asked.source), only_of=command.only_of)
        for one in drafts.all
    ]
    # Of one part that would be submitted, those that it waits for may be in another part.
    arrangement = arrange(turn, fates, may_lack=asked.dry_run and bool(asked.others))
    answer = _answer(turn, asked, drafts, fates)
    if asked.dry_run:
        return answer
    if asked.hosts:
        put_policies(turn, asked.hosts, source=plain(asked.source), by=plain(asked.submitter))
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
    left = _left(turn, asked, by_id)
    earlier = replaced(fates, left) if left else {}
    differing = _differing(turn, by_id, earlier) if earlier else {}
    jobs = []
    firsts: dict[tuple[Outcome, str], OrderOutcome] = {}
    for order in asked.jobs:
        fate = by_id[order.id]
        own: dict[str, Any] = {"id": order.id, "name": order.name, "number": order.number}
        if fate.draft.order is not order:
            shown = f"{order.name}/{order.number}" if order.number else order.name
            changes = (f"the same job as {drafts.twins.get(shown, fate.draft.shown)}",)
            jobs.append(OrderOutcome(**own, outcome=Outcome.KNOWN, state=fate.state, changes=changes))
        elif order.id in earlier:
            own |= {"instead_of": earlier[order.id], "changes": differing.get(order.id, ())}
            jobs.append(OrderOutcome(**own, outcome=fate.outcome, state=fate.state))
        elif fate.changes or fate.kept_name is not None:
            was = fate.row.shown if fate.row is not None and fate.row.shown != fate.draft.shown else ""
            own |= {"outcome": fate.outcome, "state": fate.state, "changes": fate.changes, "known_as": was}
            if fate.is_anothers and fate.row is not None:
                own |= {"submitter": fate.row.submitter, "withheld": fate.withheld}
            jobs.append(OrderOutcome(**own))
        elif (fate.outcome, fate.state) in firsts:
            jobs.append(alike(firsts[fate.outcome, fate.state], own))
        else:
            jobs.append(OrderOutcome(**own, outcome=fate.outcome, state=fate.state))
            firsts[fate.outcome, fate.state] = jobs[-1]
    counts = {outcome.value: count for outcome, count in Counter([job.outcome for job in jobs]).items()}
    vanished = shown_left(fates, left, earlier.values()) if left else ()
    return Submitted(jobs=tuple(jobs), counts=counts, vanished=vanished, dry_run=asked.dry_run)


def _left(turn: Turn, asked: Submission, by_id: dict[str, Fate]) -> list[tuple[str, str, int]]:
    """Give the pending jobs that their source no longer names: id, name, number."""
    if not asked.source:
        return []
    rows = turn.read(turn.queries.of_source, of_source=plain(asked.source))
    others = frozenset(asked.others)
    return [row for row in rows if row[0] not in by_id and row[0][:PREFIX] not in others]


def _differing(turn: Turn, by_id: dict[str, Fate], earlier: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """Say what is another in jobs that stand for earlier ones; of very many only for the first."""
    some = dict(list(earlier.items())[:_MOST_COMPARED])
    rows = turn.read(turn.queries.jobs_by_id, ids=turn.many(list(some.values())))
    specs = {row[1]: JobRow(*row).spec for row in rows}
    return {
        new: what_differs(loads(specs[old]), loads(by_id[new].draft.text)) for new, old in some.items() if old in specs
    }


def _apply(turn: Turn, asked: Submission, fates: list[Fate], arrangement: Arrangement) -> None:
    classes = _Classes(turn, plain(asked.submitter))
    for is_new, some in groupby(fates, key=_is_new):
        if is_new:
            _add(turn, asked, list(some), arrangement, classes)
        else:
            for fate in some:
                _bring_up_to_date(turn, asked, fate)
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


def _is_new(fate: Fate) -> bool:
    return fate.row is None


def _bring_up_to_date(turn: Turn, asked: Submission, fate: Fate) -> None:
    if fate.row is None:
        return
    if fate.outcome is Outcome.REQUEUED:
        # Its name and its priority may be others now, too.
        row = _change(turn, asked, fate, fate.row) if set(fate.changes) - _ABOUT_CODE else fate.row
        by = plain(asked.submitter)
        requeue_row(turn, row, spec=fate.written.text, code=fate.written.code, why="its code is another now", by=by)
    elif fate.is_to_be_written:
        _change(turn, asked, fate, fate.row)


def _add(turn: Turn, asked: Submission, fates: list[Fate], arrangement: Arrangement, classes: _Classes) -> None:
    """Take in jobs that are new. There may be ten thousand: what is the same of all is made once."""
    seqs, blocked = arrangement.seqs, arrangement.blockers
    now_s, waiting = turn.now_s, turn.book.waiting
    same = {
        "state": "pending",
        "since_s": now_s,
        "submitter": plain(asked.submitter),
        "source": plain(asked.source),
        "submitted_s": now_s,
        "changed_s": now_s,
    }
    rows: list[dict[str, Any]] = []
    ready: Counter[int] = Counter()
    for fate in fates:
        order, text = fate.draft.order, fate.draft.text
        seq, class_id = seqs[order.id], classes.of(fate.draft)
        blockers = blocked.get(seq, 0)
        rows.append(
            {
                **same,
                "seq": seq,
                "id": order.id,
                "name": order.name,
                "number": order.number,
                "label": order.label,
                "recipe": order.recipe,
                "mode": order.mode,
                "spec": text,
                "code": fate.draft.code,
                "class_id": class_id,
                "priority": order.priority,
                "is_ready": not blockers,
                "blockers": blockers,
            }
        )
        if not blockers:
            ready[class_id] += 1
            waiting.add(Ready(seq, order.id, class_id, order.priority, now_s, 0, 0, 0, 0, 0, text, ""))
    turn.write_all(turn.statements.add_job, rows)
    by = telling({"by": plain(asked.submitter)})
    turn.tell_all(FleetKinds.JOB_SUBMITTED, [row["seq"] for row in rows], epoch=0, to_state="pending", fields=by)
    turn.count("state:pending", len(rows))
    for class_id, count in ready.items():
        turn.count(f"class:{class_id}", count)


class _Classes:
    """The classes of one submission's jobs, most of which are alike."""

    def __init__(self, turn: Turn, submitter: str) -> None:
        self._turn = turn
        self._submitter = submitter
        self._known: dict[tuple[Any, ...], int] = {}

    def of(self, draft: Draft) -> int:
        order = draft.order
        if self._turn.book.listed or self._turn.book.tells_code_apart:
            # Then names count, too, or code.
            return class_of(self._turn, draft.placed_by, self._submitter)
        # All that their digest is made from, without making it.
        environment = tuple([_sort_of(one) for one in order.environment])
        like = like_of(order.recipe, order.name)
        hosts = order.allowed_hosts, order.prefer_hosts
        sort = (*order.requirements.__dict__.values(), *hosts, environment, like, order.expected_s)
        class_id = self._known.get(sort)
        if class_id is None:
            class_id = self._known[sort] = class_of(self._turn, draft.placed_by, self._submitter)
        return class_id


def _sort_of(choice: EnvironmentChoice) -> tuple[Any, ...]:
    refused = tuple(choice.refused.items()) if choice.refused else ()
    return choice.platform, choice.kind, choice.path, choice.digest, choice.python, choice.extras, refused


def _change(turn: Turn, asked: Submission, fate: Fate, row: JobRow) -> JobRow:
    """Let a known job be as it is asked for now, in the state it is in; gives its row."""
    written = fate.written
    order, text, code = written.order, written.text, written.code or row.code
    if fate.outcome is Outcome.KEPT:
        # Its result was made by the code that is written there.
        code = row.code
    new: dict[str, Any] = {
        "class_id": class_of(turn, written.placed_by, row.submitter),
        "name": order.name,
        "number": order.number,
        "label": order.label,
        "priority": order.priority if "priority" in fate.changes else row.priority,
        "source": row.source if fate.kept_name is not None else plain(asked.source) or row.source,
    }
    if set(fate.changes) - _CURES_NOTHING:
        turn.book.unbar(row.seq)
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
    fields = {"changes": list(fate.changes), **telling({"by": plain(asked.submitter)})}
    turn.tell(FleetKinds.JOB_CHANGED, seq=row.seq, epoch=row.epoch, fields=fields)
    live = turn.book.live_by_seq.get(row.seq)
    if live is not None:
        live.class_id, live.priority, live.attempts = new["class_id"], new["priority"], order.attempts
    elif row.is_ready and row.state == JobState.PENDING.value:
        leave_line(turn, row.class_id, row.priority, row.seq)
        moved = row._replace(class_id=new["class_id"], priority=new["priority"], spec=text)
        enter_line(turn, Ready(*moved[:12]))
    return row._replace(**new, spec=text, code=code)
