"""Check a submission before the writer takes it: ids, specs as stored text, all errors at once.

Pure, without the database: runs in the caller's thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from hashlib import sha256
from typing import Any

from stoker.coordinator.queue.sql import JobRow
from stoker.core.digests import digest_value
from stoker.core.errors import Diagnostic, InvalidInput
from stoker.core.frozen import changed, defaults_of, fields_of, frozen
from stoker.core.job import OF_THE_CODE, JobSpec, JobState
from stoker.core.jsontext import dumps, loads
from stoker.core.leases import may_change
from stoker.core.text import JOB_NAME_RULE, is_job_name, point_name
from stoker.host.folders import name_fault, shown_name
from stoker.protocol.environment_messages import choices_fault
from stoker.protocol.job_checks import identity_fault
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
    """One checked job spec."""

    order: JobSpec
    text: str
    """The spec as stored: JSON, without its id."""
    code: str
    """The digest of its code; empty if it names none."""

    @property
    def shown(self) -> str:
        """Its name, as shown."""
        return f"{self.order.name}/{self.order.number}" if self.order.number else self.order.name

    @property
    def placed_by(self) -> dict[str, Any]:
        """The fields that decide its class, as in its stored text."""
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
    """All jobs of a submission, each id once."""

    all: tuple[CheckedSpec, ...]
    payload: str
    """The digest of the whole submission, if it has a key."""
    twins: dict[str, str]
    """Name of a job with the same id as another one → name of that one."""


def draft(submission: Submission) -> CheckedSubmission:
    """Check a submission by itself. Raises `InvalidInput` with all errors."""
    faults: list[Diagnostic] = []
    drafts: dict[str, CheckedSpec] = {}
    twins: dict[str, str] = {}
    codes: dict[tuple[tuple[str, str], ...], str] = {}
    for at, order in enumerate(submission.jobs):
        why = _wrong(order)
        if why:
            faults.append(Diagnostic(f"jobs[{at}] {order.name[:80]}", why))
            continue
        # All jobs of a submission mostly have the same code.
        code = tuple(order.code.items())
        if code and code not in codes:
            codes[code] = digest_value("job code", order.code)
        one = CheckedSpec(order=order, text=_text(order), code=codes[code] if code else "")
        if len(one.text) > MOST_ORDER_BYTES:
            why = f"has {len(one.text):,} characters; the limit is {MOST_ORDER_BYTES:,}"
            faults.append(Diagnostic(f"jobs[{at}] {order.name[:80]}", why))
            continue
        first = drafts.setdefault(order.id, one)
        if first is not one:
            twins[one.shown] = first.shown
    faults += _circles(drafts.values())
    if faults:
        raise InvalidInput(
            f"{len(faults)} of {len(submission.jobs)} jobs are invalid",
            faults=tuple(faults[:_MOST_FAULTS]),
            count=len(faults),
            hint="nothing was submitted",
        )
    payload = _payload(submission, drafts) if submission.key else ""
    return CheckedSubmission(all=tuple(drafts.values()), payload=payload, twins=twins)


def called_as(draft: CheckedSpec, name: str, number: int, label: str, point: dict[str, Any]) -> CheckedSpec:
    """Return the same job under another name, perhaps as a point of another sweep."""
    order = changed(draft.order, name=name, number=number, label=label, point=point)
    return CheckedSpec(order=order, text=_text(order), code=draft.code)


def _payload(submission: Submission, drafts: Mapping[str, CheckedSpec]) -> str:
    """Return the digest of a submission without its key: its other fields, then id and text of each job."""
    digest = sha256(submission.model_dump_json(exclude={"key", "jobs"}).encode())
    for order in submission.jobs:
        one = drafts[order.id]
        text = one.text if one.order is order else _text(order)
        digest.update(f"\n{order.id} {text}".encode())
    return digest.hexdigest()


_NOT_STORED = {"id"}


def _text(order: JobSpec) -> str:
    """Return a spec as stored text."""
    text = str(JOB_BODY.dump_json(order, exclude=_NOT_STORED), "utf-8")
    if "NaN" in text or "Infinity" in text or '"$' in text:
        # Our own JSON writes these differently.
        text = dumps(JOB_BODY.dump_python(order, mode="json", exclude=_NOT_STORED))
    return text


def _wrong(order: JobSpec) -> str:
    return _wrongly_called(order) or values_fault(order) or choices_fault(order.environment) or identity_fault(order)


def _wrongly_called(order: JobSpec) -> str:
    """Return what is wrong with a job's names: its name and label become folders, and are typed."""
    if order.number > _MOST_INT:
        return f"number {order.number} is too large"
    if not is_job_name(order.name):
        return f"not a valid job name: {JOB_NAME_RULE}"
    if order.label and (fault := "it has a slash" if "/" in order.label else name_fault(order.label)):
        return f"label is not a valid folder name: {fault}"
    for word, text in (("recipe", order.recipe), ("mode", order.mode)):
        if not text.isprintable():
            return f"{word} {shown_name(text)} has a character that is not printable"
    return ""


def _circles(drafts: Collection[CheckedSpec]) -> list[Diagnostic]:
    """Return the dependency cycles among the jobs of one submission.

    A name in `after` means all jobs of that name: names are nodes of the graph, so that a thousand jobs that depend on
    a thousand have two thousand edges and not a million.
    """
    if not any(one.order.after for one in drafts):
        return []
    jobs: dict[str, list[str]] = {}
    """Name → its jobs, as `name/number`."""
    words: dict[str, tuple[str, ...]] = {}
    """Job → the names that it depends on."""
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
    """Walk the graph from a node; return the names of the first cycle found, else none."""
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


# What a submission does to an existing job: a pure decision, before anything is written.

CODE_TREE = "code_tree"
"""The reported change if only other files of the project changed."""


@frozen
class SpecDecision:
    """What a submission does to one job."""

    draft: CheckedSpec
    """As submitted."""
    row: JobRow | None
    """The existing job; None: it is new."""
    outcome: SubmissionOutcome
    state: str
    """Afterwards."""
    changes: tuple[str, ...] = ()
    kept_name: CheckedSpec | None = None
    """The same under the job's existing name; None: the submitted name is used."""
    is_anothers: bool = False
    """Another user submitted the job: it is not changed."""
    withheld: tuple[str, ...] = ()
    """The fields that would have changed."""

    @property
    def written(self) -> CheckedSpec:
        """The spec to store."""
        return self.kept_name or self.draft

    @property
    def is_to_be_written(self) -> bool:
        """True if the job is to be updated. The source of a result stays as it was."""
        return bool(self.changes) and not (self.changes == (CODE_TREE,) and JobState(self.state).is_terminal)


def decide(
    draft: CheckedSpec,
    row: JobRow | None,
    on_changed_code: OnChangedCode,
    source: str = "",
    *,
    only_of: str | None = None,
) -> SpecDecision:
    """Decide what a submission does to a job. Its state is kept, unless its code changed.

    Its name is kept, too: users look for it under the old one. Only the source that submitted a job can rename it.

    A failed job is requeued if anything in its project changed. A completed one counts as changed only if the program's
    own files did, and is run again only on request. A job that has not ended runs with the present project.

    A job of a user other than `only_of` (None: all may be changed) is never changed.
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
    """Return the decision for another user's job: unchanged, with the fields that would have changed."""
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
    """Return the changed fields of a stored spec, except those of its code. A field that it lacks has its default."""
    apart = OF_THE_CODE if new.get("code_tree") else OF_THE_CODE - {"folder"}
    before = {**_defaults(), **old}
    return tuple(name for name, value in new.items() if name not in apart and before.get(name) != value)


@cache
def _defaults() -> dict[str, Any]:
    """Return the fields of a spec that have a default, as they are stored."""
    stored: dict[str, Any] = loads(_text(JobSpec(id="", name="", recipe="")))
    return {name: stored[name] for name in defaults_of(JobSpec) if name in stored}


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
        # Not a different job: some file of the project changed, perhaps the manifest itself.
        changes = (*changes, CODE_TREE)
    return SpecDecision(draft=draft, row=row, outcome=outcome, state=row.state, changes=changes)


_SHORT = 12
_ASKED = ("recipe", "mode", "seed", "split_recipe", "train_hosts")


def replaced(fates: Iterable[SpecDecision], left: Iterable[tuple[str, str, int]]) -> dict[str, str]:
    """Return the new jobs that replace pending ones of the same name which their source no longer has: new id → old.

    Inputs and values are part of a job's id, so such a job is new, and the earlier one remains. To users it is shown as
    one job that changed.
    """
    new = {(one.draft.order.name, one.draft.order.number): one.draft.order.id for one in fates if _is_new(one)}
    return {new[name, number]: old for old, name, number in left if (name, number) in new}


def what_differs(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the differences that make two specs different jobs: `lr`, `data.DATA`, `seed`."""
    names = [key for key in _ASKED if (old.get(key) or None) != (new.get(key) or None)]
    before, now = old.get("identity", {}), new.get("identity", {})
    for key in dict.fromkeys((*now, *before)):
        was, is_now = before.get(key), now.get(key)
        # Keys that are not arguments are in parentheses.
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
    """Return the names of jobs that were not replaced; with the id if the source uses the name for another job."""
    gone, named = set(taken), {one.draft.shown for one in fates}
    shown = ((id, point_name(name, number)) for id, name, number in left if id not in gone)
    return tuple(f"{name} as {id[:_SHORT]}" if name in named else name for id, name in shown)


def _is_new(fate: SpecDecision) -> bool:
    return fate.outcome is SubmissionOutcome.NEW
