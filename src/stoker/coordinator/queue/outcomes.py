"""What a submission does to a job that is known already: decided purely, before anything is written."""

from __future__ import annotations

from typing import Any

from stoker.coordinator.queue.drafting import Draft
from stoker.coordinator.queue.rows import JobRow
from stoker.model.frozen import frozen
from stoker.model.json_text import loads
from stoker.model.lifecycle import JobState
from stoker.wire.orders import OnChangedCode, Outcome

_NOT_COMPARED = frozenset({"code"})


@frozen
class Fate:
    """What becomes of one order."""

    draft: Draft
    row: JobRow | None
    """The job as it stands; nothing: it is new."""
    outcome: Outcome
    state: str
    """Afterwards."""
    changes: tuple[str, ...] = ()


def decide(draft: Draft, row: JobRow | None, on_changed_code: OnChangedCode) -> Fate:
    """Say what becomes of an order. Its state is kept, except where its code is another now."""
    if row is None:
        return Fate(draft=draft, row=None, outcome=Outcome.NEW, state=JobState.PENDING.value)
    changes = () if draft.text == row.spec else changed_fields(loads(row.spec), loads(draft.text))
    is_other_code = bool(draft.code and row.code and draft.code != row.code)
    if is_other_code and row.state == JobState.FAILED.value:
        return Fate(
            draft=draft, row=row, outcome=Outcome.REQUEUED, state=JobState.PENDING.value, changes=(*changes, "code")
        )
    if is_other_code and row.state == JobState.COMPLETED.value:
        if on_changed_code is OnChangedCode.RERUN:
            return Fate(
                draft=draft, row=row, outcome=Outcome.REQUEUED, state=JobState.PENDING.value, changes=(*changes, "code")
            )
        return Fate(draft=draft, row=row, outcome=Outcome.KEPT, state=row.state, changes=changes)
    if is_other_code or (draft.code and not row.code):
        changes = (*changes, "code")
    return Fate(
        draft=draft, row=row, outcome=Outcome.CHANGED if changes else Outcome.KNOWN, state=row.state, changes=changes
    )


def changed_fields(old: dict[str, Any], new: dict[str, Any]) -> tuple[str, ...]:
    """Name the fields of an order that are others now."""
    return tuple(name for name, value in new.items() if name not in _NOT_COMPARED and old.get(name) != value)
