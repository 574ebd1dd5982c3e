"""Statements of the writer, compiled once for its database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Select,
    Table,
    and_,
    bindparam,
    case,
    delete,
    false,
    func,
    insert,
    literal_column,
    null,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect

from stoker.coordinator.database.database import PreparedStatement, one_of
from stoker.coordinator.database.tables import (
    AFTER,
    ALLOCATIONS,
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
    LAUNCH_REQUESTS,
    LEASES,
    MACHINES,
    META,
    POLICIES,
    POOLS,
    SUBMISSIONS,
    SYMPTOMS,
    TOKENS,
)
from stoker.core.text import point_name

NEW_JOB = (
    "seq", "id", "name", "number", "label", "recipe", "mode", "spec", "code", "class_id", "priority", "state",
    "is_ready", "blockers", "since_s", "submitter", "source", "submitted_s", "changed_s",
)  # fmt: skip
NEW_ATTEMPT = (
    "seq", "attempt", "epoch", "generation", "machine", "incarnation", "capability", "devices", "granted_s",
)  # fmt: skip
_NOTHING_WRONG = {"cause": "", "message": "", "hint": "", "error": ""}


class Statements:
    """The writer's statements by name, compiled once for its database. `in_order` is the order in a batch.

    What is pointed at is written before what points at it. Changes of a job, a lease or an attempt name the epoch
    and the state that they start from, so that a row that is another by now is not changed; a batch counts the rows.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._is_sqlite = dialect.name == "sqlite"
        self._guarded: list[PreparedStatement] = []
        self._all: list[PreparedStatement] = []
        self._make_jobs()
        self._make_attempts()
        self._make_members()
        self._make_launch()
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
        # An expired attempt may end once more: its result arrived late, and the job was not granted again.
        # As parameters: PostgreSQL takes a condition of fixed values for one that few rows meet, and would go through
        # all attempts for it instead of finding each by its key.
        ending = ATTEMPTS.c.ending
        is_open = or_(ending == bindparam("not_ended", ""), ending == bindparam("expired", "expired"))
        self.end_attempt = self._guard(
            update(ATTEMPTS).where(attempt, is_open),
            "started_s", "ended_s", "ending", "cause", "message", "hint", "exit_code", "tree", "facts",
        )  # fmt: skip

        # Goes through all attempts: for the few machines that lost leases before their end was known.
        self.forgive_attempts = self._write(
            update(ATTEMPTS).where(
                ATTEMPTS.c.machine == bindparam("at_machine"),
                ATTEMPTS.c.ended_s > bindparam("after_s"),
                ending == bindparam("was_expired", "expired"),
                ATTEMPTS.c.cause == bindparam("was_cause"),
            ),
            "cause",
        )

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

    def _make_members(self) -> None:
        self.put_invite = self._put(INVITES, "id")
        self.drop_invite = self._write(delete(INVITES).where(INVITES.c.id == bindparam("at_id")))
        self.put_token = self._put(TOKENS, "id")
        self.put_certificate = self._put(CERTIFICATES, "serial")
        self.drop_certificate = self._write(delete(CERTIFICATES).where(CERTIFICATES.c.serial == bindparam("at_serial")))

    def _make_launch(self) -> None:
        self.put_pool = self._put(POOLS, "name")
        self.drop_pool = self._write(delete(POOLS).where(POOLS.c.name == bindparam("at_name")))
        self.put_allocation = self._put(ALLOCATIONS, "id")
        self.put_launch_request = self._put(LAUNCH_REQUESTS, "id")
        self.drop_launch_request = self._write(
            delete(LAUNCH_REQUESTS).where(LAUNCH_REQUESTS.c.id == bindparam("at_id"))
        )
        self.drop_allocation = self._write(delete(ALLOCATIONS).where(ALLOCATIONS.c.id == bindparam("at_id")))

    def _write(self, statement: Any, *columns: str, is_distinct: bool = False) -> PreparedStatement:
        prepared = PreparedStatement(statement, self._dialect, columns, is_distinct=is_distinct)
        self._all.append(prepared)
        return prepared

    def _guard(self, statement: Any, *columns: str) -> PreparedStatement:
        prepared = self._write(statement, *columns)
        self._guarded.append(prepared)
        return prepared

    def _add(self, table: Table) -> PreparedStatement:
        return self._write(insert(table), *table.columns.keys())

    def _put(self, table: Table, *keys: str, is_added: bool = False) -> PreparedStatement:
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

    def _job(self, *columns: str, **constants: str | float | bool | None) -> PreparedStatement:
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


# Rows as the writer reads them.


def records(table: Table, rows: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return rows of a table as dicts by column names."""
    names = table.columns.keys()
    return [dict(zip(names, row, strict=True)) for row in rows]


class JobRow(NamedTuple):
    """The columns for decisions about a job, in this order."""

    seq: int
    id: str
    class_id: int
    priority: int
    since_s: float
    epoch: int
    attempt: int
    user_failures: int
    lost: int
    declined: int
    spec: str
    checkpoint: str
    name: str
    number: int
    label: str
    recipe: str
    code: str
    state: str
    is_ready: bool
    blockers: int
    not_before_s: float
    is_cancelling: bool
    source: str
    machine: str
    tree: str
    archive_sha256: str
    started_s: float | None
    cause: str
    submitter: str

    @property
    def shown(self) -> str:
        """Its name, as shown."""
        return point_name(self.name, self.number)


class LeaseRow(NamedTuple):
    """A live lease and its job, read at a start."""

    seq: int
    attempt: int
    epoch: int
    generation: int
    machine: str
    incarnation: str
    devices: str
    is_shared: bool
    progress: str
    id: str
    class_id: int
    priority: int
    state: str
    blockers: int
    is_cancelling: bool
    user_failures: int
    lost: int
    declined: int
    started_s: float | None
    message: str
    spec: str
    granted_s: float
    """The attempt's."""


class EndedRow(NamedTuple):
    """An attempt that has ended."""

    class_id: int
    submitter: str
    machine: str
    devices: str
    granted_s: float
    started_s: float | None
    ended_s: float
    ending: str


READY_FIELDS = JobRow._fields[:12]
"""The columns of a ready job: `ReadyJobEntry`, in its order."""
LEASE_FIELDS = LeaseRow._fields[:9]
"""The columns of the lease's own table; the others are the job's."""


# Literals: SQLite uses a partial index only for a condition that it can compare with the index's own.
READY = text("jobs.state = 'pending' AND jobs.is_ready")
DELAYED = text("jobs.state = 'pending' AND NOT jobs.is_ready AND jobs.blockers = 0")


class Queries:
    """By name."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._make_load()
        self._make_pending()
        self._make_jobs()
        self._make_health()
        self.submission = self._read(
            select(SUBMISSIONS.c.payload, SUBMISSIONS.c.answer).where(SUBMISSIONS.c.key == bindparam("of_key"))
        )
        self.old_submissions = self._read(
            select(SUBMISSIONS.c.key).where(SUBMISSIONS.c.at_s < bindparam("before_s")).limit(bindparam("most"))
        )
        self._make_old_rows()

    def _make_old_rows(self) -> None:
        """What may be too old to be kept."""
        self.events_behind = self._read(
            select(EVENTS.c.id, EVENTS.c.seq, EVENTS.c.at_s)
            .where(EVENTS.c.id > bindparam("after_id"))
            .order_by(EVENTS.c.id)
            .limit(bindparam("most"))
        )
        self.told_jobs = self._read(
            select(EVENTS.c.seq, func.max(EVENTS.c.id))
            .join_from(EVENTS, JOBS, JOBS.c.seq == EVENTS.c.seq)
            .where(self._one_of(EVENTS.c.seq, "seqs"), text("jobs.state IN ('completed', 'failed', 'cancelled')"))
            .group_by(EVENTS.c.seq)
            .having(func.max(EVENTS.c.at_s) < bindparam("before_s"))
        )
        of_class = select(JOBS.c.seq).where(JOBS.c.class_id == CLASSES.c.id)
        self.unused_classes = self._read(
            select(CLASSES.c.id).where(
                CLASSES.c.id > bindparam("after_id"), CLASSES.c.id <= bindparam("to_id"), ~of_class.exists()
            )
        )

    def _make_load(self) -> None:
        """Everything that the writer keeps in memory."""
        self.meta = self._read(select(META.c.key, META.c.value))
        self.classes = self._read(select(CLASSES.c.id, CLASSES.c.key, CLASSES.c.wanted))
        self.newest = self._read(
            select(
                select(func.max(JOBS.c.seq)).scalar_subquery(),
                select(func.max(EVENTS.c.id)).scalar_subquery(),
                select(func.max(BUNDLES.c.id)).scalar_subquery(),
                select(EVENTS.c.at_s).order_by(EVENTS.c.id.desc()).limit(1).scalar_subquery(),
                select(func.min(JOBS.c.not_before_s)).where(DELAYED).scalar_subquery(),
                select(AFTER.c.seq).limit(1).scalar_subquery(),
            )
        )
        own, others = LEASE_FIELDS, LeaseRow._fields[len(LEASE_FIELDS) : -1]
        columns = [LEASES.c[name] for name in own] + [JOBS.c[name] for name in others] + [ATTEMPTS.c.granted_s]
        self.leases = self._read(
            select(*columns)
            .join_from(LEASES, JOBS, JOBS.c.seq == LEASES.c.seq)
            .join(ATTEMPTS, (ATTEMPTS.c.seq == LEASES.c.seq) & (ATTEMPTS.c.attempt == LEASES.c.attempt))
            .order_by(LEASES.c.seq)
        )
        self.machines = self._read(select(*MACHINES.columns))
        self.policies = self._read(select(POLICIES.c.policy))
        self.pools = self._read(select(*POOLS.columns).order_by(POOLS.c.name))
        self.launch_requests = self._read(select(*LAUNCH_REQUESTS.columns).order_by(LAUNCH_REQUESTS.c.requested_s))
        self.live_allocations = self._read(
            select(*ALLOCATIONS.columns).where(ALLOCATIONS.c.ended_s.is_(None)).order_by(ALLOCATIONS.c.planned_s)
        )
        self.ended_allocations = self._read(
            select(*ALLOCATIONS.columns)
            .where(ALLOCATIONS.c.ended_s > bindparam("after_s"))
            .order_by(ALLOCATIONS.c.ended_s.desc())
            .limit(bindparam("most"))
        )
        self.allocations_by_id = self._read(select(*ALLOCATIONS.columns).where(self._one_of(ALLOCATIONS.c.id, "ids")))
        started_s, ended_s = ALLOCATIONS.c.started_s, ALLOCATIONS.c.ended_s
        from_s = case((started_s > bindparam("after_s"), started_s), else_=bindparam("after_s"))
        until_s = func.coalesce(ended_s, bindparam("now_s"))
        self.seconds_by_pool = self._read(
            select(ALLOCATIONS.c.pool, func.sum(until_s - from_s), func.sum(ALLOCATIONS.c.idle_s))
            .where(started_s.is_not(None), or_(ended_s.is_(None), ended_s > bindparam("after_s")), until_s > from_s)
            .group_by(ALLOCATIONS.c.pool)
        )
        self.old_allocations = self._read(
            select(ALLOCATIONS.c.id).where(ALLOCATIONS.c.ended_s < bindparam("before_s")).limit(bindparam("most"))
        )
        self.old_certificates = self._read(
            select(CERTIFICATES.c.serial)
            .where(CERTIFICATES.c.expires_s < bindparam("before_s"))
            .limit(bindparam("most"))
        )
        self.invites = self._read(select(*INVITES.columns))
        self.tokens = self._read(select(*TOKENS.columns))
        self.certificates = self._read(
            select(*CERTIFICATES.columns).where(CERTIFICATES.c.expires_s > bindparam("after_s"))
        )
        self.claims = self._read(
            select(CLAIMS.c.request_id, CLAIMS.c.incarnation, CLAIMS.c.at_s, CLAIMS.c.granted).order_by(CLAIMS.c.at_s)
        )
        # A class at a time, along its index: over all classes, SQLite would go through every pending row.
        self.levels = self._read(
            select(JOBS.c.priority, func.count())
            .where(READY, JOBS.c.class_id == bindparam("of_class"))
            .group_by(JOBS.c.priority)
        )

        # Attempts of the newest jobs by number: bounded, however many have ended, and found along an index.
        newest = (
            select(JOBS.c.seq, JOBS.c.class_id, JOBS.c.submitter)
            .where(JOBS.c.state == bindparam("of_state"))
            .order_by(JOBS.c.seq.desc())
            .limit(bindparam("most"))
            .subquery()
        )
        self.ended = self._read(
            select(
                newest.c.class_id,
                newest.c.submitter,
                ATTEMPTS.c.machine,
                ATTEMPTS.c.devices,
                ATTEMPTS.c.granted_s,
                ATTEMPTS.c.started_s,
                ATTEMPTS.c.ended_s,
                ATTEMPTS.c.ending,
            )
            .join_from(newest, ATTEMPTS, ATTEMPTS.c.seq == newest.c.seq)
            .where(ATTEMPTS.c.ended_s.is_not(None))
        )
        # By the index of jobs: attempts have none by machine.
        self.last_ends = self._read(
            select(ATTEMPTS.c.machine, func.count(), func.max(ATTEMPTS.c.ended_s))
            .join_from(JOBS, ATTEMPTS, ATTEMPTS.c.seq == JOBS.c.seq)
            .where(self._one_of(JOBS.c.machine, "machines"), ATTEMPTS.c.machine == JOBS.c.machine)
            .group_by(ATTEMPTS.c.machine)
        )

    def _make_pending(self) -> None:
        waiting = select(*[JOBS.c[name] for name in READY_FIELDS])
        self.page = self._read(
            waiting.where(
                READY,
                JOBS.c.class_id == bindparam("of_class"),
                JOBS.c.priority == bindparam("of_priority"),
                JOBS.c.seq > bindparam("after_seq"),
            )
            .order_by(JOBS.c.seq)
            .limit(bindparam("most"))
            .with_for_update(skip_locked=True)
        )
        self.delayed = self._read(
            waiting.where(DELAYED, JOBS.c.not_before_s <= bindparam("now_s"))
            .order_by(JOBS.c.not_before_s)
            .limit(bindparam("most"))
        )
        self.next_delay = self._read(select(func.min(JOBS.c.not_before_s)).where(DELAYED))

    def _make_jobs(self) -> None:
        jobs = select(*[JOBS.c[name] for name in JobRow._fields])
        self.jobs_by_id = self._read(jobs.where(self._one_of(JOBS.c.id, "ids")))
        self.jobs_by_seq = self._read(jobs.where(self._one_of(JOBS.c.seq, "seqs")).order_by(JOBS.c.seq))
        is_open = text("jobs.state IN ('pending', 'claimed', 'running')")
        self.open_recipes = self._read(select(JOBS.c.recipe).where(is_open).distinct())
        called = self._one_of(JOBS.c.name, "names") | self._one_of(JOBS.c.recipe, "recipes")
        self.open_called = self._read(jobs.where(is_open, called).order_by(JOBS.c.seq))
        self.names_by_seq = self._read(
            select(JOBS.c.seq, JOBS.c.name, JOBS.c.number).where(self._one_of(JOBS.c.seq, "seqs"))
        )
        self.names = self._read(
            select(JOBS.c.seq, JOBS.c.name, JOBS.c.number, JOBS.c.state).where(self._one_of(JOBS.c.name, "names"))
        )
        self.before = self._read(
            select(AFTER.c.seq, AFTER.c.before_seq, JOBS.c.state)
            .join_from(AFTER, JOBS, JOBS.c.seq == AFTER.c.before_seq)
            .where(self._one_of(AFTER.c.seq, "seqs"))
        )
        self.followers = self._read(select(AFTER.c.seq).where(self._one_of(AFTER.c.before_seq, "seqs")))
        self.of_source = self._read(
            select(JOBS.c.id, JOBS.c.name, JOBS.c.number)
            .where(JOBS.c.source == bindparam("of_source"), text("jobs.source <> '' AND jobs.state = 'pending'"))
            .order_by(JOBS.c.seq)
        )
        results = select(BUNDLES.c.id, BUNDLES.c.seq, BUNDLES.c.is_pinned, BUNDLES.c.pruned_s)
        self.results = self._read(results.where(self._one_of(BUNDLES.c.id, "ids")).order_by(BUNDLES.c.id))
        self.results_of = self._read(results.where(self._one_of(BUNDLES.c.seq, "seqs")))
        self.content = self._read(
            select(CONTENTS.c.at_s, CONTENTS.c.wanted_s, CONTENTS.c.is_pinned).where(
                CONTENTS.c.tree == bindparam("of_tree")
            )
        )
        self.content_size = self._read(
            select(CONTENTS.c.listing, CONTENTS.c.size_bytes).where(CONTENTS.c.tree == bindparam("of_tree"))
        )
        of_attempt = (ATTEMPTS.c.seq == bindparam("of_seq"), ATTEMPTS.c.attempt == bindparam("of_attempt"))
        self.attempt = self._read(
            select(
                ATTEMPTS.c.epoch, ATTEMPTS.c.generation, ATTEMPTS.c.ending, ATTEMPTS.c.tree, ATTEMPTS.c.machine
            ).where(*of_attempt)
        )
        self.lost_attempts = self._read(
            select(ATTEMPTS.c.machine, ATTEMPTS.c.started_s, ATTEMPTS.c.ending)
            .where(ATTEMPTS.c.seq == bindparam("of_seq"), text("attempts.cause = 'lost'"))
            .order_by(ATTEMPTS.c.attempt.desc())
            .limit(bindparam("most"))
        )

    def _make_health(self) -> None:
        self.symptoms = self._read(select(*SYMPTOMS.columns))
        self.hooks = self._read(select(*HOOKS.columns).order_by(HOOKS.c.id))
        # Where a hook of some jobs begins: before the ends of those that have ended already.
        ended = text("events.to_state IN ('completed', 'failed', 'cancelled')")
        self.ends_of = self._read(
            select(EVENTS.c.seq, func.max(EVENTS.c.id))
            .where(self._one_of(EVENTS.c.seq, "seqs"), ended)
            .group_by(EVENTS.c.seq)
        )

    def _one_of(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        return one_of(column, name, self._dialect)

    def _read(self, statement: Select[Any]) -> PreparedStatement:
        return PreparedStatement(statement, self._dialect)
