"""What is wrong with machines, and who is told of events elsewhere."""

from __future__ import annotations

from sqlalchemy import Connection, select

from stoker.coordinator.database.tables import HOOKS, SYMPTOMS
from stoker.model.frozen import frozen
from stoker.model.json_text import loads
from stoker.wire.views import SymptomView

_MOST = 1000


@frozen
class HookRow:
    """A hook as it is written down."""

    id: int
    url: str
    secret: str
    words: tuple[str, ...]
    jobs: tuple[int, ...]
    """Numbers; none: all."""
    cursor: int
    is_inner: bool
    failures: int
    failing_since_s: float | None
    not_before_s: float
    last_error: str
    made_s: float
    closed_s: float | None
    by: str

    def __repr__(self) -> str:
        # A secret must not come into a message by way of an error.
        return f"HookRow({self.id})"


def read_symptoms(connection: Connection, machine: str = "") -> tuple[SymptomView, ...]:
    """Give what is wrong now; of very much a part."""
    asked = select(SYMPTOMS).where(SYMPTOMS.c.over_s.is_(None))
    if machine:
        asked = asked.where(SYMPTOMS.c.machine == machine)
    asked = asked.order_by(SYMPTOMS.c.machine, SYMPTOMS.c.symptom, SYMPTOMS.c.device).limit(_MOST)
    return tuple(
        SymptomView(
            machine=row.machine,
            device=row.device,
            symptom=row.symptom,
            since_s=row.since_s,
            message=row.message,
            hint=row.hint,
        )
        for row in connection.execute(asked)
    )


def read_hooks(connection: Connection, *, is_open: bool = False) -> tuple[HookRow, ...]:
    """Give the hooks, the oldest first."""
    asked = select(HOOKS).order_by(HOOKS.c.id)
    if is_open:
        asked = asked.where(HOOKS.c.closed_s.is_(None))
    return tuple(
        HookRow(
            id=row.id,
            url=row.url,
            secret=row.secret,
            words=tuple(loads(row.kinds)) if row.kinds else (),
            jobs=tuple(loads(row.jobs)) if row.jobs else (),
            cursor=row.cursor,
            is_inner=bool(row.is_inner),
            failures=row.failures,
            failing_since_s=row.failing_since_s,
            not_before_s=row.not_before_s,
            last_error=row.last_error,
            made_s=row.made_s,
            closed_s=row.closed_s,
            by=row.by,
        )
        for row in connection.execute(asked)
    )
