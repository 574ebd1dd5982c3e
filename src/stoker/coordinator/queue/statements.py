"""What the writer writes, compiled once for its database.

Changes of a job, a lease or an attempt name the epoch and the state that they start from, so that a row that is another
by now is not changed; a batch counts the rows.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table, and_, bindparam, delete, false, insert, literal_column, null, or_, true, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect

from stoker.coordinator.database.prepared import Prepared
from stoker.coordinator.database.tables import (
    AFTER,
    ATTEMPTS,
    BUNDLES,
    CERTIFICATES,
    CLAIMS,
    CLASSES,
    CONTENTS,
    COUNTERS,
    EVENTS,
    HOOKS,
    INVITES,
    JOBS,
    LEASES,
    MACHINES,
    META,
    POLICIES,
    SUBMISSIONS,
    SYMPTOMS,
    TOKENS,
)

NEW_JOB = (
    "seq", "id", "name", "number", "label", "recipe", "mode", "spec", "code", "class_id", "priority", "state",
    "is_ready", "blockers", "since_s", "submitter", "source", "submitted_s", "changed_s",
)  # fmt: skip
NEW_ATTEMPT = (
    "seq", "attempt", "epoch", "generation", "machine", "incarnation", "capability", "devices", "granted_s",
)  # fmt: skip
_NOTHING_WRONG = {"cause": "", "message": "", "hint": "", "error": ""}


class Statements:
    """By name. `in_order` is how a batch runs them: what is pointed at before what points at it."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._is_sqlite = dialect.name == "sqlite"
        self._guarded: list[Prepared] = []
        self._all: list[Prepared] = []
        self._make_jobs()
        self._make_attempts()
        self._make_others()
        self.in_order = tuple(self._all)
        self.guarded = frozenset(self._guarded)
        """Those whose every row must change exactly one."""

    def _make_jobs(self) -> None:
        self.add_class = self._add(CLASSES)
        self.add_job = self._write(insert(JOBS), *NEW_JOB)
        self.drop_after = self._write(delete(AFTER).where(AFTER.c.seq == bindparam("at_seq")))
        self.add_after = self._add(AFTER)
        self.change_job = self._job(
            "class_id", "name", "number", "label", "priority", "spec", "code", "blockers", "is_ready", "source"
        )
        self.grant_job = self._job(
            "epoch", "attempt", "machine", "changed_s", state="claimed", is_ready=False, started_s=None
        )
        self.start_job = self._job("started_s", "changed_s", state="running")
        self.finish_job = self._job(
            "started_s", "ended_s", "changed_s", "tree", "archive_sha256", "size_bytes", "metrics", "seconds",
            state="completed", is_ready=False, is_cancelling=False, exit_code=0, **_NOTHING_WRONG,
        )  # fmt: skip
        self.end_job = self._job(
            "state", "ended_s", "changed_s", "cause", "message", "hint", "error", "exit_code", "user_failures", "lost",
            is_ready=False, is_cancelling=False,
        )  # fmt: skip
        self.return_job = self._job(
            "is_ready", "not_before_s", "since_s", "changed_s", "user_failures", "lost", "declined", "cause", "message",
            state="pending", is_cancelling=False,
        )  # fmt: skip
        self.requeue_job = self._job(
            "class_id", "epoch", "is_ready", "since_s", "changed_s", "blockers", "spec", "code", "checkpoint",
            state="pending", ended_s=None, not_before_s=0, is_cancelling=False, user_failures=0, lost=0, declined=0,
            **_NOTHING_WRONG,
        )  # fmt: skip
        self.set_class = self._job("class_id")
        self.set_priority = self._job("priority", "changed_s")
        self.mark_cancelling = self._job("changed_s", "message", is_cancelling=True)
        self.block_job = self._job("blockers", "is_ready", "since_s", "changed_s")
        self.ready_job = self._job("since_s", "changed_s", is_ready=True)
        self.point_checkpoint = self._job("checkpoint", "changed_s")

    def _make_attempts(self) -> None:
        self.end_lease = self._guard(delete(LEASES).where(_at(LEASES)))
        self.add_lease = self._add(LEASES)
        self.renew_lease = self._guard(update(LEASES).where(_at(LEASES)), "until_s", "progress")
        self.add_attempt = self._write(insert(ATTEMPTS), *NEW_ATTEMPT)
        attempt = and_(_at(ATTEMPTS), ATTEMPTS.c.attempt == bindparam("at_attempt"))
        self.start_attempt = self._guard(update(ATTEMPTS).where(attempt), "started_s")
        # An expired attempt may end once more: its result came back, and nobody else had been given the job.
        # As parameters: PostgreSQL takes a condition of fixed values for one that few rows meet, and would go through
        # all attempts for it instead of finding each by its key.
        ending = ATTEMPTS.c.ending
        is_open = or_(ending == bindparam("not_ended", ""), ending == bindparam("expired", "expired"))
        self.end_attempt = self._guard(
            update(ATTEMPTS).where(attempt, is_open),
            "started_s", "ended_s", "ending", "cause", "message", "hint", "exit_code", "tree", "facts",
        )  # fmt: skip

    def _make_others(self) -> None:
        self.add_bundle = self._write(
            insert(BUNDLES), "id", "seq", "attempt", "tree", "archive_sha256", "size_bytes", "at_s"
        )
        self.pin_results = self._write(update(BUNDLES).where(BUNDLES.c.seq == bindparam("at_seq")), "is_pinned")
        self.prune_result = self._write(update(BUNDLES).where(BUNDLES.c.id == bindparam("at_id")), "pruned_s")
        self.put_content = self._put(CONTENTS, "tree")
        content = CONTENTS.c.tree == bindparam("at_tree")
        self.want_content = self._write(update(CONTENTS).where(content), "wanted_s")
        self.drop_content = self._write(delete(CONTENTS).where(content))
        self.add_claim = self._add(CLAIMS)
        self.drop_claim = self._write(delete(CLAIMS).where(CLAIMS.c.request_id == bindparam("at_id")))
        self.put_machine = self._put(MACHINES, "name")
        machine = MACHINES.c.name == bindparam("at_name")
        self.see_machine = self._write(update(MACHINES).where(machine), "last_seen_s")
        self.leave_machine = self._write(update(MACHINES).where(machine), "left_s")
        self.declare_machine = self._write(update(MACHINES).where(machine), "declared")
        self.close_machine = self._write(update(MACHINES).where(machine), "closed", "why", "until_s", "closed_devices")
        self.put_report = self._write(update(MACHINES).where(machine), "report")
        self.drop_machine = self._write(delete(MACHINES).where(machine))
        self.put_policy = self._put(POLICIES, "name")
        self.put_invite = self._put(INVITES, "id")
        self.put_token = self._put(TOKENS, "id")
        self.put_certificate = self._put(CERTIFICATES, "serial")
        self.put_symptom = self._put(SYMPTOMS, "machine", "device", "symptom")
        keys = ("machine", "device", "symptom")
        symptom = and_(*(SYMPTOMS.c[name] == bindparam(f"at_{name}") for name in keys))
        self.drop_symptom = self._write(delete(SYMPTOMS).where(symptom))
        self.put_hook = self._put(HOOKS, "id")
        self.drop_hook = self._write(delete(HOOKS).where(HOOKS.c.id == bindparam("at_id")))
        self.add_submission = self._add(SUBMISSIONS)
        self.drop_submission = self._write(delete(SUBMISSIONS).where(SUBMISSIONS.c.key == bindparam("at_key")))
        self.put_meta = self._put(META, "key")
        self.add_count = self._put(COUNTERS, "key", is_added=True)
        self.drop_count = self._write(delete(COUNTERS).where(COUNTERS.c.key == bindparam("at_key")))
        self.drop_class = self._write(delete(CLASSES).where(CLASSES.c.id == bindparam("at_id")))
        # Before new ones come: those stay.
        self.drop_event = self._write(delete(EVENTS).where(EVENTS.c.id == bindparam("at_id")))
        self.drop_events_of = self._write(delete(EVENTS).where(EVENTS.c.seq == bindparam("at_seq")))
        self.add_event = self._add(EVENTS)

    def _write(self, statement: Any, *columns: str, is_distinct: bool = False) -> Prepared:
        prepared = Prepared(statement, self._dialect, columns, is_distinct=is_distinct)
        self._all.append(prepared)
        return prepared

    def _guard(self, statement: Any, *columns: str) -> Prepared:
        prepared = self._write(statement, *columns)
        self._guarded.append(prepared)
        return prepared

    def _add(self, table: Table) -> Prepared:
        return self._write(insert(table), *table.columns.keys())

    def _put(self, table: Table, *keys: str, is_added: bool = False) -> Prepared:
        """Make a row, or bring the one that is there up to date; if `is_added`, its value grows by the new one."""
        make: Any = sqlite.insert if self._is_sqlite else postgresql.insert
        statement = make(table)
        new = statement.excluded
        others = {
            column.name: column + new[column.name] if is_added else new[column.name]
            for column in table.columns
            if column.name not in keys
        }
        upsert = statement.on_conflict_do_update(index_elements=list(keys), set_=others)
        # A batch adds up what a counter grows by, and so names it once.
        return self._write(upsert, *table.columns.keys(), is_distinct=is_added)

    def _job(self, *columns: str, **constants: str | float | bool | None) -> Prepared:
        """Change a job's row, if it is still the one that was decided about."""
        guard = and_(_at(JOBS), JOBS.c.state == bindparam("was_state"))
        fixed = {name: _literal(value) for name, value in constants.items()}
        return self._guard(update(JOBS).where(guard).values(fixed), *columns)


def _at(table: Table) -> Any:
    return and_(table.c.seq == bindparam("at_seq"), table.c.epoch == bindparam("was_epoch"))


def _literal(value: object) -> Any:
    if value is None:
        return null()
    if isinstance(value, bool):
        return true() if value else false()
    return literal_column(f"'{value}'" if isinstance(value, str) else str(value))
