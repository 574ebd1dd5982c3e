"""A submission made ready before it is the writer's turn: ids checked, orders written as text, faults all at once.

Nothing here knows the database, so it is done in the asker's own thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from typing import Any

from stoker.coordinator.queue.sql import JobRow
from stoker.core.digests import digest_value
from stoker.core.errors import Diagnostic, InvalidInput
from stoker.core.frozen import changed, fields_of, frozen
from stoker.core.job import JobSpec, JobState
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import may_change
from stoker.core.text import JOB_NAME_RULE, is_job_name, point_name
from stoker.host.folders import name_fault, shown_name
from stoker.protocol.client_identity import identity_fault
from stoker.protocol.environment_messages import choices_fault
from stoker.protocol.job_messages import (
    JOB_BODY,
    MOST_ORDER_BYTES,
    OnChangedCode,
    Submission,
    SubmissionOutcome,
    values_fault,
)

_MOST_INT = (1 << 31) - 1
_MOST_FAULTS = 100


@frozen
class CheckedSpec:
    """One order, ready to be stored."""

    order: JobSpec
    text: str
    """The order as it is stored: JSON, without its id."""
    code: str
    """The digest of its code; empty if it names none."""

    @property
    def shown(self) -> str:
        """What people call it."""
        return f"{self.order.name}/{self.order.number}" if self.order.number else self.order.name

    @property
    def placed_by(self) -> dict[str, Any]:
        """What decides its class, as its stored text has it."""
        order = self.order
        return {
            "name": order.name,
            "number": order.number,
            "recipe": order.recipe,
            "requirements": fields_of(order.requirements),
            "allowed_hosts": order.allowed_hosts,
            "prefer_hosts": order.prefer_hosts,
            "expected_s": order.expected_s,
            "environment": order.environment,
            "code_tree": order.code_tree,
            "commit": order.commit,
            "args": order.args,
            "inputs": order.inputs,
        }


@frozen
class CheckedSubmission:
    """All orders of a submission, each id once."""

    all: tuple[CheckedSpec, ...]
    payload: str
    """The digest of everything asked for, if it came with a key."""
    twins: dict[str, str]
    """Orders that are another one's job → what that one is called, by their own names."""


def draft(submission: Submission) -> CheckedSubmission:
    """Check a submission as far as it can be checked by itself.

    Raises `InvalidInput`, with all that is wrong.
    """
    faults: list[Diagnostic] = []
    drafts: dict[str, CheckedSpec] = {}
    twins: dict[str, str] = {}
    drafting = _Drafting()
    for at, order in enumerate(submission.jobs):
        why = _wrong(order)
        if why:
            faults.append(Diagnostic(f"jobs[{at}] {order.name[:80]}", why))
            continue
        one = drafting.draft(order)
        if len(one.text) > MOST_ORDER_BYTES:
            why = f"it has {len(one.text):,} characters; {MOST_ORDER_BYTES:,} are the most"
            faults.append(Diagnostic(f"jobs[{at}] {order.name[:80]}", why))
            continue
        first = drafts.setdefault(order.id, one)
        if first is not one:
            twins[one.shown] = first.shown
    faults += _circles(drafts.values())
    if faults:
        raise InvalidInput(
            f"{len(faults)} of {len(submission.jobs)} jobs can't be taken",
            faults=tuple(faults[:_MOST_FAULTS]),
            count=len(faults),
            hint="nothing was submitted",
        )
    payload = _payload(submission, drafts) if submission.key else ""
    return CheckedSubmission(all=tuple(drafts.values()), payload=payload, twins=twins)


def called_as(draft: CheckedSpec, name: str, number: int, label: str, point: dict[str, Any]) -> CheckedSpec:
    """Return the same order under another name, perhaps as a point of another sweep."""
    order = changed(draft.order, name=name, number=number, label=label, point=point)
    return CheckedSpec(order=order, text=_text(order), code=draft.code)


def _payload(submission: Submission, drafts: Mapping[str, CheckedSpec]) -> str:
    """Digest everything that is asked for but the key: the rest of it, then each order as its id and its text."""
    digest = sha256(submission.model_dump_json(exclude={"key", "jobs"}).encode())
    for order in submission.jobs:
        one = drafts[order.id]
        text = one.text if one.order is order else _text(order)
        digest.update(f"\n{order.id} {text}".encode())
    return digest.hexdigest()


class _Drafting:
    """Makes drafts; what all jobs of a submission have in common is made once."""

    def __init__(self) -> None:
        self._codes: dict[tuple[tuple[str, str], ...], str] = {}

    def draft(self, order: JobSpec) -> CheckedSpec:
        return CheckedSpec(order=order, text=_text(order), code=self._code(order.code) if order.code else "")

    def _code(self, code: dict[str, str]) -> str:
        key = tuple(code.items())
        known = self._codes.get(key)
        if known is None:
            known = self._codes[key] = digest_value("job code", code)
        return known


_NOT_STORED = {"id"}


def _text(order: JobSpec) -> str:
    """Return an order as it is stored."""
    text = str(JOB_BODY.dump_json(order, exclude=_NOT_STORED), "utf-8")
    if "NaN" in text or "Infinity" in text or '"$' in text:
        # Those are written otherwise in our own JSON.
        text = dumps(JOB_BODY.dump_python(order, mode="json", exclude=_NOT_STORED))
    return text


def _wrong(order: JobSpec) -> str:
    return _wrongly_called(order) or values_fault(order) or choices_fault(order.environment) or identity_fault(order)


def _wrongly_called(order: JobSpec) -> str:
    """Return what is wrong with what people will know a job by: its name and label become folders, and are typed."""
    if order.number > _MOST_INT:
        return f"number {order.number} is too large"
    if not is_job_name(order.name):
        return f"no name for a job: {JOB_NAME_RULE}"
    if order.label and (fault := "it has a slash" if "/" in order.label else name_fault(order.label)):
        return f"its label can't be a folder's name: {fault}"
    for word, text in (("recipe", order.recipe), ("mode", order.mode)):
        if not text.isprintable():
            return f"its {word} {shown_name(text)} has a character that can't be shown"
    return ""


def _circles(drafts: Collection[CheckedSpec]) -> list[Diagnostic]:
    """Find jobs of one submission that wait for themselves, directly or through others.

    A word in `after` stands for all jobs of that name: it is a place of its own on the way, so that a thousand jobs
    that wait for a thousand are two thousand steps and not a million.
    """
    if not any(one.order.after for one in drafts):
        return []
    jobs: dict[str, list[str]] = {}
    """Word → the jobs that it stands for, as `name/number`."""
    words: dict[str, tuple[str, ...]] = {}
    """Job → the words that it waits for."""
    for one in drafts:
        place = f"{one.order.name}/{one.order.number}"
        words[place] = one.order.after
        for word in {one.order.name, one.shown}:
            jobs.setdefault(word, []).append(place)
    steps: dict[tuple[str, bool], list[tuple[str, bool]]] = {
        **{(word, False): [(place, True) for place in places] for word, places in jobs.items()},
        **{(place, True): [(word, False) for word in after if word in jobs] for place, after in words.items()},
    }
    done: set[tuple[str, bool]] = set()
    return [
        Diagnostic(circle[0], f"waits for itself: {' → '.join(circle)}")
        for start in steps
        if start not in done and (circle := _circle_from(start, steps, done))
    ]


def _circle_from(
    start: tuple[str, bool], steps: dict[tuple[str, bool], list[tuple[str, bool]]], done: set[tuple[str, bool]]
) -> list[str]:
    """Walk along what somebody waits for; gives the words on the way back to one that was met, if there is one."""
    path: dict[tuple[str, bool], None] = {}
    stack: list[tuple[tuple[str, bool], bool]] = [(start, False)]
    while stack:
        at, is_left = stack.pop()
        if is_left:
            del path[at]
            done.add(at)
        elif at in path:
            way = list(path)
            done.update(way)
            circle = [word for word, is_job in way[way.index(at) :] if not is_job]
            return [*circle, circle[0]]
        elif at not in done:
            path[at] = None
            stack.append((at, True))
            stack += [(step, False) for step in steps[at]]
    return []


# What a submission does to a job that is known already: decided purely, before anything is written.

_CODE = frozenset({"code", "code_tree", "code_folder", "commit", "folder", "project"})
"""Which code it is, and where that lies: told apart from what is wanted."""
CODE_TREE = "code_tree"
"""What is said to have changed if no more did than other files of the project."""


@frozen
class SpecDecision:
    """What becomes of one order."""

    draft: CheckedSpec
    """As it is asked for."""
    row: JobRow | None
    """The job as it stands; nothing: it is new."""
    outcome: SubmissionOutcome
    state: str
    """Afterwards."""
    changes: tuple[str, ...] = ()
    kept_name: CheckedSpec | None = None
    """The same under the name that the job has; nothing: it is called as it is asked for."""
    is_anothers: bool = False
    """Another principal submitted the job: it stays exactly as it is."""
    withheld: tuple[str, ...] = ()
    """What would have changed of it."""

    @property
    def written(self) -> CheckedSpec:
        """As it is to stand in the queue."""
        return self.kept_name or self.draft

    @property
    def is_to_be_written(self) -> bool:
        """Whether the job is to be as it is asked for now. What a result was made from stays as it was."""
        return bool(self.changes) and not (self.changes == (CODE_TREE,) and JobState(self.state).is_terminal)


def decide(
    draft: CheckedSpec,
    row: JobRow | None,
    on_changed_code: OnChangedCode,
    source: str = "",
    *,
    only_of: str | None = None,
) -> SpecDecision:
    """Return what becomes of an order. Its state is kept, except where its code is another now.

    So is its name, whatever the same work is called this time: people look for it under the old one. Only the source
    that brought a job gives it another.

    A job that failed is tried again with anything that changed in its project; a result is doubted only if the
    program's own files did, and run again on demand alone; what has not ended runs with what the project is now.

    A job that somebody other than `only_of` submitted (None: all may be changed) is followed and never changed.
    """
    if row is None:
        return SpecDecision(draft=draft, row=None, outcome=SubmissionOutcome.NEW, state=JobState.PENDING.value)
    is_anothers = not may_change(only_of, row.submitter)
    if is_anothers or (draft.order.name != row.name and (not source or source != row.source)):
        kept_name = called_as(draft, row.name, row.number, row.label, loads(row.spec).get("point", {}))
        fate = changed(_of_known(kept_name, row, on_changed_code), draft=draft, kept_name=kept_name)
        return _followed(fate, row) if is_anothers else fate
    return _of_known(draft, row, on_changed_code)


def _followed(fate: SpecDecision, row: JobRow) -> SpecDecision:
    """Return what becomes of an order for another principal's job: nothing, with what would have become of it."""
    withheld = (*fate.changes, "code") if fate.outcome is SubmissionOutcome.KEPT else fate.changes
    return changed(
        fate,
        outcome=SubmissionOutcome.KNOWN,
        state=row.state,
        changes=(),
        is_anothers=True,
        withheld=tuple(dict.fromkeys(withheld)),
    )


def changed_fields(old: dict[str, Any], new: dict[str, Any]) -> tuple[str, ...]:
    """Name the fields of an order that are others now, but for those about its code."""
    apart = _CODE if new.get("code_tree") else _CODE - {"folder"}
    return tuple(name for name, value in new.items() if name not in apart and old.get(name) != value)


def _of_known(draft: CheckedSpec, row: JobRow, on_changed_code: OnChangedCode) -> SpecDecision:
    old, new = ({}, {}) if draft.text == row.spec else (loads(row.spec), loads(draft.text))
    changes = changed_fields(old, new)
    is_other_code = bool(draft.code and row.code and draft.code != row.code)
    is_other_tree = old.get("code_tree", "") != new.get("code_tree", "")
    is_wanted_again = row.state == JobState.FAILED.value or (
        row.state == JobState.COMPLETED.value and on_changed_code is OnChangedCode.RERUN
    )
    if (is_other_code or is_other_tree) and is_wanted_again:
        return SpecDecision(
            draft=draft,
            row=row,
            outcome=SubmissionOutcome.REQUEUED,
            state=JobState.PENDING.value,
            changes=(*changes, "code"),
        )
    if is_other_code and row.state == JobState.COMPLETED.value:
        return SpecDecision(draft=draft, row=row, outcome=SubmissionOutcome.KEPT, state=row.state, changes=changes)
    if is_other_code or (draft.code and not row.code):
        changes = (*changes, "code")
    outcome = SubmissionOutcome.CHANGED if changes else SubmissionOutcome.KNOWN
    if is_other_tree:
        # Nothing that anybody would call another job: some file of the project, perhaps the manifest itself.
        changes = (*changes, CODE_TREE)
    return SpecDecision(draft=draft, row=row, outcome=outcome, state=row.state, changes=changes)


# Jobs of a manifest that became others: same name, other values or data. Pure.
#
# What a job reads and its values are part of its id, so such a job is new, and the one before it stays. For people it
# is one job that changed: which of the two is told of by which word is decided here.

_SHORT = 12
_ASKED = ("recipe", "mode", "seed", "split_recipe", "train_hosts")


def replaced(fates: Iterable[SpecDecision], left: Iterable[tuple[str, str, int]]) -> dict[str, str]:
    """Return which new jobs stand for which pending ones that their source no longer names: their ids, by name."""
    new = {(one.draft.order.name, one.draft.order.number): one.draft.order.id for one in fates if _is_new(one)}
    return {new[name, number]: old for old, name, number in left if (name, number) in new}


def what_differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """Name what makes one order another job than an earlier one: `lr`, `data.DATA`, `seed`."""
    names = [key for key in _ASKED if (old.get(key) or None) != (new.get(key) or None)]
    before, now = old.get("identity", {}), new.get("identity", {})
    for key in dict.fromkeys((*now, *before)):
        was, is_now = before.get(key), now.get(key)
        # What is ours and no argument stands in brackets there.
        plain = str(key).strip("()")
        if was == is_now:
            continue
        if isinstance(was, dict) and isinstance(is_now, dict):
            inner = dict.fromkeys((*is_now, *was))
            names += [f"{plain}.{one}" for one in inner if was.get(one) != is_now.get(one)]
        else:
            names.append(plain)
    return tuple(names)


def shown_left(
    fates: Iterable[SpecDecision], left: Iterable[tuple[str, str, int]], taken: Iterable[str]
) -> tuple[str, ...]:
    """Return what people call the jobs that nothing stands for; with the id where the source calls another one so."""
    gone, named = set(taken), {one.draft.shown for one in fates}
    shown = ((id, point_name(name, number)) for id, name, number in left if id not in gone)
    return tuple(f"{name} as {id[:_SHORT]}" if name in named else name for id, name in shown)


def _is_new(fate: SpecDecision) -> bool:
    return fate.outcome is SubmissionOutcome.NEW
