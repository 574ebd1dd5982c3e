"""What a submission does to a job that is known already: decided purely, before anything is written."""

from __future__ import annotations

from typing import Any

from stoker.coordinator.queue.drafting import Draft, called_as
from stoker.coordinator.queue.rows import JobRow
from stoker.model.frozen import changed, frozen
from stoker.model.json_text import loads
from stoker.model.lifecycle import JobState
from stoker.model.principals import may_change
from stoker.wire.orders import OnChangedCode, Outcome

_CODE = frozenset({"code", "code_tree", "code_folder", "commit", "folder", "project"})
"""Which code it is, and where that lies: told apart from what is wanted."""
CODE_TREE = "code_tree"
"""What is said to have changed if no more did than other files of the project."""


@frozen
class Fate:
    """What becomes of one order."""

    draft: Draft
    """As it is asked for."""
    row: JobRow | None
    """The job as it stands; nothing: it is new."""
    outcome: Outcome
    state: str
    """Afterwards."""
    changes: tuple[str, ...] = ()
    kept_name: Draft | None = None
    """The same under the name that the job has; nothing: it is called as it is asked for."""
    is_anothers: bool = False
    """Another principal submitted the job: it stays exactly as it is."""
    withheld: tuple[str, ...] = ()
    """What would have changed of it."""

    @property
    def written(self) -> Draft:
        """As it is to stand in the queue."""
        return self.kept_name or self.draft

    @property
    def is_to_be_written(self) -> bool:
        """Whether the job is to be as it is asked for now. What a result was made from stays as it was."""
        return bool(self.changes) and not (self.changes == (CODE_TREE,) and JobState(self.state).is_terminal)


def decide(
    draft: Draft,
    row: JobRow | None,
    on_changed_code: OnChangedCode,
    source: str = "",
    *,
    only_of: str | None = None,
) -> Fate:
    """Say what becomes of an order. Its state is kept, except where its code is another now.

    So is its name, whatever the same work is called this time: people look for it under the old one. Only the source
    that brought a job gives it another.

    A job that failed is tried again with anything that changed in its project; a result is doubted only if the
    program's own files did, and run again on demand alone; what has not ended runs with what the project is now.

    A job that somebody other than `only_of` submitted (None: all may be changed) is followed and never changed.
    """
    if row is None:
        return Fate(draft=draft, row=None, outcome=Outcome.NEW, state=JobState.PENDING.value)
    is_anothers = not may_change(only_of, row.submitter)
    if is_anothers or (draft.order.name != row.name and (not source or source != row.source)):
        kept_name = called_as(draft, row.name, row.number, row.label, loads(row.spec).get("point", {}))
        fate = changed(_of_known(kept_name, row, on_changed_code), draft=draft, kept_name=kept_name)
        return _followed(fate, row) if is_anothers else fate
    return _of_known(draft, row, on_changed_code)


def _followed(fate: Fate, row: JobRow) -> Fate:
    """Return what becomes of an order for another principal's job: nothing, with what would have become of it."""
    withheld = (*fate.changes, "code") if fate.outcome is Outcome.KEPT else fate.changes
    return changed(
        fate,
        outcome=Outcome.KNOWN,
        state=row.state,
        changes=(),
        is_anothers=True,
        withheld=tuple(dict.fromkeys(withheld)),
    )


def changed_fields(old: dict[str, Any], new: dict[str, Any]) -> tuple[str, ...]:
    """Name the fields of an order that are others now, but for those about its code."""
    apart = _CODE if new.get("code_tree") else _CODE - {"folder"}
    return tuple(name for name, value in new.items() if name not in apart and old.get(name) != value)


def _of_known(draft: Draft, row: JobRow, on_changed_code: OnChangedCode) -> Fate:
    old, new = ({}, {}) if draft.text == row.spec else (loads(row.spec), loads(draft.text))
    changes = changed_fields(old, new)
    is_other_code = bool(draft.code and row.code and draft.code != row.code)
    is_other_tree = old.get("code_tree", "") != new.get("code_tree", "")
    is_wanted_again = row.state == JobState.FAILED.value or (
        row.state == JobState.COMPLETED.value and on_changed_code is OnChangedCode.RERUN
    )
    if (is_other_code or is_other_tree) and is_wanted_again:
        return Fate(
            draft=draft, row=row, outcome=Outcome.REQUEUED, state=JobState.PENDING.value, changes=(*changes, "code")
        )
    if is_other_code and row.state == JobState.COMPLETED.value:
        return Fate(draft=draft, row=row, outcome=Outcome.KEPT, state=row.state, changes=changes)
    if is_other_code or (draft.code and not row.code):
        changes = (*changes, "code")
    outcome = Outcome.CHANGED if changes else Outcome.KNOWN
    if is_other_tree:
        # Nothing that anybody would call another job: some file of the project, perhaps the manifest itself.
        changes = (*changes, CODE_TREE)
    return Fate(draft=draft, row=row, outcome=outcome, state=row.state, changes=changes)
