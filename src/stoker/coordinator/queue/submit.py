"""Submit: all jobs of a submission are accepted or none, and the same submission again changes nothing."""

from __future__ import annotations

from collections import Counter
from graphlib import CycleError, TopologicalSorter
from itertools import groupby
from typing import Any

from stoker.coordinator.queue.classes import class_of, like_of, put_policies
from stoker.coordinator.queue.commands import Submit
from stoker.coordinator.queue.operator_commands import requeue_row
from stoker.coordinator.queue.ready_jobs import ReadyJobEntry
from stoker.coordinator.queue.sql import JobRow
from stoker.coordinator.queue.submission_check import (
    CODE_TREE,
    CheckedSpec,
    CheckedSubmission,
    SpecDecision,
    decide,
    replaced,
    shown_left,
    what_differs,
)
from stoker.coordinator.queue.transaction import WriterTransaction, enter_line, leave_line, plain, recount, telling
from stoker.core.errors import Conflict, Diagnostic, InvalidInput
from stoker.core.events import FleetKinds
from stoker.core.frozen import fields_of, frozen
from stoker.core.job import FOR_PEOPLE, EnvironmentChoice, JobState
from stoker.core.jsontext import loads
from stoker.core.text import counted, did_you_mean
from stoker.protocol.codec import alike
from stoker.protocol.job_messages import PREFIX, JobSubmissionResult, Submission, SubmissionOutcome, SubmissionResponse


@frozen
class Arrangement:
    """Numbers of jobs, and their dependencies: names become jobs, of this submission first, else existing ones."""

    seqs: dict[str, int]
    """By id; new jobs get the next numbers."""
    befores: dict[int, tuple[int, ...]]
    """The dependencies of a job, if they are to be stored."""
    blockers: dict[int, int]
    """How many of them have not completed."""


def arrange(transaction: WriterTransaction, fates: list[SpecDecision], *, may_lack: bool = False) -> Arrangement:
    """Number new jobs and find their dependencies; with `may_lack`, unknown names are allowed.

    Raises `InvalidInput` for unknown names, and for dependency cycles.
    """
    seqs: dict[str, int] = {}
    newest = transaction.book.seq
    for fate in fates:
        newest += fate.row is None
        seqs[fate.draft.order.id] = newest if fate.row is None else fate.row.seq
    arranged = [fate for fate in fates if fate.draft.order.after and _is_written(fate)]
    dropped = [fate for fate in fates if not fate.draft.order.after and "after" in fate.changes]
    befores: dict[int, tuple[int, ...]] = {seqs[fate.draft.order.id]: () for fate in dropped}
    blockers: dict[int, int] = {}
    if arranged:
        words = {word for fate in arranged for word in fate.draft.order.after}
        named = _named(transaction, fates, seqs, words, may_lack=may_lack)
        for fate in arranged:
            at = seqs[fate.draft.order.id]
            found = {before: state for word in fate.draft.order.after for before, state in named.get(word, {}).items()}
            found.pop(at, None)
            befores[at] = tuple(sorted(found))
            blockers[at] = sum(1 for state in found.values() if state != JobState.COMPLETED.value)
    if any(fate.row is not None for fate in arranged):
        _refuse_circles(transaction, fates, seqs, befores)
    return Arrangement(seqs=seqs, befores=befores, blockers=blockers)


def _refuse_circles(
    transaction: WriterTransaction, fates: list[SpecDecision], seqs: dict[str, int], befores: dict[int, tuple[int, ...]]
) -> None:
    """Refuse a cycle through existing jobs; one among new jobs alone was refused by `draft`."""
    ways = dict(befores)
    ahead = {before for some in befores.values() for before in some} - ways.keys()
    while ahead:
        ways.update(dict.fromkeys(ahead, ()))
        for seq, before, _ in transaction.read(transaction.queries.before, seqs=transaction.many(sorted(ahead))):
            ways[seq] = (*ways[seq], before)
        ahead = {before for seq in ahead for before in ways[seq]} - ways.keys()
    try:
        TopologicalSorter(ways).prepare()
    except CycleError as error:
        circle: list[int] = error.args[1][::-1]
        shown = {seqs[fate.draft.order.id]: fate.draft.shown for fate in fates}
        known = transaction.read(
            transaction.queries.jobs_by_seq, seqs=transaction.many(sorted(set(circle) - shown.keys()))
        )
        shown |= {row.seq: row.shown for row in (JobRow(*row) for row in known)}
        names = [shown[seq] for seq in circle]
        raise InvalidInput(
            "jobs depend on each other in a cycle",
            faults=(Diagnostic(names[0], f"waits for itself: {' → '.join(names)}"),),
            hint="nothing was submitted",
        ) from None


def _is_written(fate: SpecDecision) -> bool:
    return fate.outcome is SubmissionOutcome.NEW or "after" in fate.changes


def _named(
    transaction: WriterTransaction, fates: list[SpecDecision], seqs: dict[str, int], words: set[str], *, may_lack: bool
) -> dict[str, dict[int, str]]:
    """Return the jobs of each name, with their states."""
    named: dict[str, dict[int, str]] = {}
    for fate in fates:
        for word in {fate.draft.order.name, fate.draft.shown}:
            named.setdefault(word, {})[seqs[fate.draft.order.id]] = fate.state
    elsewhere = words - named.keys()
    if elsewhere:
        bases = elsewhere | {word.rpartition("/")[0] for word in elsewhere}
        newest: dict[tuple[str, int], tuple[int, str]] = {}
        for seq, name, number, state in transaction.read(
            transaction.queries.names, names=transaction.many(sorted(bases))
        ):
            newest[name, number] = max(newest.get((name, number), (0, "")), (seq, state))
        for (name, number), (seq, state) in newest.items():
            for word in {name, f"{name}/{number}"} & elsewhere:
                named.setdefault(word, {})[seq] = state
    missing = sorted(words - named.keys())
    if missing and not may_lack:
        raise InvalidInput(
            f"{counted(len(missing), 'unknown name')} in `after`",
            faults=tuple(
                Diagnostic("after", f"there is no job {word!r}", did_you_mean(word, named)) for word in missing
            ),
            hint="name a job of this submission, or an earlier one",
        )
    return named


_MOST_COMPARED = 1000
_ABOUT_CODE = frozenset({"code", CODE_TREE})
_CURES_NOTHING = FOR_PEOPLE | {"priority", "after", "expected_s"}
"""Changes of a job that do not matter to a machine that declined it."""


def submit(transaction: WriterTransaction, command: Submit, drafts: CheckedSubmission) -> SubmissionResponse:
    """Apply a submission, or return what it would change."""
    asked = command.asked
    if asked.key and not asked.dry_run:
        before = transaction.read(transaction.queries.submission, of_key=plain(asked.key))
        if before:
            return _again(asked, drafts, *before[0])
    ids = [one.order.id for one in drafts.all]
    known = {
        row[1]: JobRow(*row) for row in transaction.read(transaction.queries.jobs_by_id, ids=transaction.many(ids))
    }
    fates = [
        decide(one, known.get(one.order.id), asked.on_changed_code, plain(asked.source), only_of=command.only_of)
        for one in drafts.all
    ]
    # In a dry run of one part, dependencies may be in another part.
    arrangement = arrange(transaction, fates, may_lack=asked.dry_run and bool(asked.others))
    answer = _answer(transaction, asked, drafts, fates)
    if asked.dry_run:
        return answer
    if asked.hosts:
        put_policies(transaction, asked.hosts, source=plain(asked.source), by=plain(asked.submitter))
    _apply(transaction, asked, fates, arrangement)
    if asked.key:
        transaction.write(
            transaction.statements.add_submission,
            key=plain(asked.key),
            payload=drafts.payload,
            at_s=transaction.now_s,
            answer=answer.model_dump_json(),
        )
    return answer


def _again(asked: Submission, drafts: CheckedSubmission, payload: str, answer: str) -> SubmissionResponse:
    if payload != drafts.payload:
        raise Conflict(
            f"idempotency key {asked.key!r} belongs to another submission",
            hint="use a new key for other jobs",
            key=asked.key,
        )
    return SubmissionResponse.model_validate_json(answer)


def _answer(
    transaction: WriterTransaction, asked: Submission, drafts: CheckedSubmission, fates: list[SpecDecision]
) -> SubmissionResponse:
    by_id = {fate.draft.order.id: fate for fate in fates}
    left = _left(transaction, asked, by_id)
    earlier = replaced(fates, left) if left else {}
    differing = _differing(transaction, by_id, earlier) if earlier else {}
    jobs = []
    firsts: dict[tuple[SubmissionOutcome, str], JobSubmissionResult] = {}
    for order in asked.jobs:
        fate = by_id[order.id]
        own: dict[str, Any] = {"id": order.id, "name": order.name, "number": order.number}
        if fate.draft.order is not order:
            shown = f"{order.name}/{order.number}" if order.number else order.name
            changes = (f"the same job as {drafts.twins.get(shown, fate.draft.shown)}",)
            jobs.append(JobSubmissionResult(**own, outcome=SubmissionOutcome.KNOWN, state=fate.state, changes=changes))
        elif order.id in earlier:
            own |= {"instead_of": earlier[order.id], "changes": differing.get(order.id, ())}
            jobs.append(JobSubmissionResult(**own, outcome=fate.outcome, state=fate.state))
        elif fate.changes or fate.kept_name is not None:
            was = fate.row.shown if fate.row is not None and fate.row.shown != fate.draft.shown else ""
            own |= {"outcome": fate.outcome, "state": fate.state, "changes": fate.changes, "known_as": was}
            if fate.is_anothers and fate.row is not None:
                own |= {"submitter": fate.row.submitter, "withheld": fate.withheld}
            jobs.append(JobSubmissionResult(**own))
        elif (fate.outcome, fate.state) in firsts:
            jobs.append(alike(firsts[fate.outcome, fate.state], own))
        else:
            jobs.append(JobSubmissionResult(**own, outcome=fate.outcome, state=fate.state))
            firsts[fate.outcome, fate.state] = jobs[-1]
    counts = {outcome.value: count for outcome, count in Counter([job.outcome for job in jobs]).items()}
    vanished = shown_left(fates, left, earlier.values()) if left else ()
    return SubmissionResponse(jobs=tuple(jobs), counts=counts, vanished=vanished, dry_run=asked.dry_run)


def _left(
    transaction: WriterTransaction, asked: Submission, by_id: dict[str, SpecDecision]
) -> list[tuple[str, str, int]]:
    """Return the pending jobs that their source no longer has: id, name, number."""
    if not asked.source:
        return []
    rows = transaction.read(transaction.queries.of_source, of_source=plain(asked.source))
    others = frozenset(asked.others)
    return [row for row in rows if row[0] not in by_id and row[0][:PREFIX] not in others]


def _differing(
    transaction: WriterTransaction, by_id: dict[str, SpecDecision], earlier: dict[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return the differences between new jobs and the earlier ones that they replace; of very many for the first."""
    some = dict(list(earlier.items())[:_MOST_COMPARED])
    rows = transaction.read(transaction.queries.jobs_by_id, ids=transaction.many(list(some.values())))
    specs = {row[1]: JobRow(*row).spec for row in rows}
    return {
        new: what_differs(loads(specs[old]), loads(by_id[new].draft.text)) for new, old in some.items() if old in specs
    }


def _apply(
    transaction: WriterTransaction, asked: Submission, fates: list[SpecDecision], arrangement: Arrangement
) -> None:
    classes = _Classes(transaction, plain(asked.submitter))
    for is_new, some in groupby(fates, key=_is_new):
        if is_new:
            _add(transaction, asked, list(some), arrangement, classes)
        else:
            for fate in some:
                _bring_up_to_date(transaction, asked, fate)
    transaction.book.seq = max(transaction.book.seq, *arrangement.seqs.values(), 0)
    known = {fate.row.seq for fate in fates if fate.row is not None}
    for seq, befores in arrangement.befores.items():
        if seq in known:
            transaction.write(transaction.statements.drop_after, at_seq=seq)
        for before_seq in befores:
            transaction.write(transaction.statements.add_after, seq=seq, before_seq=before_seq)
            transaction.book.has_after = True
    rearranged = known & arrangement.befores.keys()
    if rearranged:
        recount(transaction, rearranged)


def _is_new(fate: SpecDecision) -> bool:
    return fate.row is None


def _bring_up_to_date(transaction: WriterTransaction, asked: Submission, fate: SpecDecision) -> None:
    if fate.row is None:
        return
    if fate.outcome is SubmissionOutcome.REQUEUED:
        # Its name and priority may have changed, too.
        row = _change(transaction, asked, fate, fate.row) if set(fate.changes) - _ABOUT_CODE else fate.row
        by = plain(asked.submitter)
        requeue_row(transaction, row, spec=fate.written.text, code=fate.written.code, why="its code has changed", by=by)
    elif fate.is_to_be_written:
        _change(transaction, asked, fate, fate.row)


def _add(
    transaction: WriterTransaction,
    asked: Submission,
    fates: list[SpecDecision],
    arrangement: Arrangement,
    classes: _Classes,
) -> None:
    """Add new jobs. There may be ten thousand: common fields are made once."""
    seqs, blocked = arrangement.seqs, arrangement.blockers
    now_s, waiting = transaction.now_s, transaction.book.waiting
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
            waiting.add(ReadyJobEntry(seq, order.id, class_id, order.priority, now_s, 0, 0, 0, 0, 0, text, ""))
    transaction.write_all(transaction.statements.add_job, rows)
    by = telling({"by": plain(asked.submitter)})
    transaction.tell_all(FleetKinds.JOB_SUBMITTED, [row["seq"] for row in rows], epoch=0, to_state="pending", fields=by)
    transaction.count("state:pending", len(rows))
    for class_id, count in ready.items():
        transaction.count(f"class:{class_id}", count)


class _Classes:
    """The classes of one submission's jobs, most of which are alike."""

    def __init__(self, transaction: WriterTransaction, submitter: str) -> None:
        self._transaction = transaction
        self._submitter = submitter
        self._known: dict[tuple[Any, ...], int] = {}

    def of(self, draft: CheckedSpec) -> int:
        order = draft.order
        if self._transaction.book.listed or self._transaction.book.is_code_in_classes:
            # Then the class depends on names, or code.
            return class_of(self._transaction, draft.placed_by, self._submitter)
        # The fields of the digest, without computing it.
        environment = tuple([_sort_of(one) for one in order.environment])
        like = like_of(order.recipe, order.name)
        hosts = order.allowed_hosts, order.prefer_hosts
        sort = (*fields_of(order.requirements).values(), *hosts, environment, like, order.expected_s)
        class_id = self._known.get(sort)
        if class_id is None:
            class_id = self._known[sort] = class_of(self._transaction, draft.placed_by, self._submitter)
        return class_id


def _sort_of(choice: EnvironmentChoice) -> tuple[Any, ...]:
    refused = tuple(choice.refused.items()) if choice.refused else ()
    return choice.platform, choice.kind, choice.path, choice.digest, choice.python, choice.extras, refused


def _change(transaction: WriterTransaction, asked: Submission, fate: SpecDecision, row: JobRow) -> JobRow:
    """Update a job to its new spec, in its present state, and return its row."""
    written = fate.written
    order, text, code = written.order, written.text, written.code or row.code
    if fate.outcome is SubmissionOutcome.KEPT:
        # Its result was made by the stored code.
        code = row.code
    new: dict[str, Any] = {
        "class_id": class_of(transaction, written.placed_by, row.submitter),
        "name": order.name,
        "number": order.number,
        "label": order.label,
        "priority": order.priority if "priority" in fate.changes else row.priority,
        "source": row.source if fate.kept_name is not None else plain(asked.source) or row.source,
    }
    if set(fate.changes) - _CURES_NOTHING:
        transaction.book.unbar(row.seq)
    transaction.move(row.seq)
    transaction.write(
        transaction.statements.change_job,
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
    transaction.tell(FleetKinds.JOB_CHANGED, seq=row.seq, epoch=row.epoch, fields=fields)
    live = transaction.book.live_by_seq.get(row.seq)
    if live is not None:
        live.job.class_id, live.job.priority, live.attempts = new["class_id"], new["priority"], order.attempts
    elif row.is_ready and row.state == JobState.PENDING.value:
        leave_line(transaction, row.class_id, row.priority, row.seq)
        moved = row._replace(class_id=new["class_id"], priority=new["priority"], spec=text)
        enter_line(transaction, ReadyJobEntry(*moved[:12]))
    return row._replace(**new, spec=text, code=code)
