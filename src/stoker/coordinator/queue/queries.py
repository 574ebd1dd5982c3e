"""What the writer reads, compiled once for its database."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, func, select, text
from sqlalchemy.engine import Dialect

from stoker.coordinator.database.prepared import Prepared, one_of
from stoker.coordinator.database.tables import (
    AFTER,
    ATTEMPTS,
    BUNDLES,
    CERTIFICATES,
    CLAIMS,
    CLASSES,
    CONTENTS,
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
from stoker.coordinator.queue.rows import LEASE_FIELDS, READY_FIELDS, JobRow, LeaseRow

# Literals: SQLite uses a partial index only for a condition that it can compare with the index's own.
READY = text("jobs.state = 'pending' AND jobs.is_ready")
DELAYED = text("jobs.state = 'pending' AND NOT jobs.is_ready AND jobs.blockers = 0")

MACHINE_COLUMNS = tuple(MACHINES.columns.keys())


class Queries:
    """By name."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._make_loading()
        self._make_waiting()
        self._make_jobs()
        self._make_health()
        self.submission = self._read(
            select(SUBMISSIONS.c.payload, SUBMISSIONS.c.answer).where(SUBMISSIONS.c.key == bindparam("of_key"))
        )
        self.old_submissions = self._read(
            select(SUBMISSIONS.c.key).where(SUBMISSIONS.c.at_s < bindparam("before_s")).limit(bindparam("most"))
        )
        self._make_dropping()

    def _make_dropping(self) -> None:
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

    def _make_loading(self) -> None:
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
        self.machines = self._read(select(*[MACHINES.c[name] for name in MACHINE_COLUMNS]))
        self.policies = self._read(select(POLICIES.c.policy))
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

    def _make_waiting(self) -> None:
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

    def _read(self, statement: Select[Any]) -> Prepared:
        return Prepared(statement, self._dialect)
