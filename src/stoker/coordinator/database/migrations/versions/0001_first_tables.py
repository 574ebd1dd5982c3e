"""The first tables: jobs and their attempts, leases, results; machines; events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# SQLite counts up by itself only in a column that is exactly INTEGER.
COUNTED = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make them all, and begin with the first generation."""
    _make_claims()
    _make_classes()
    _make_counters()
    _make_events()
    _make_machines()
    _make_meta()
    _make_policies()
    _make_submissions()
    _make_jobs()
    _make_after()
    _make_attempts()
    _make_bundles()
    _make_leases()
    meta = sa.table("meta", sa.column("key", sa.String), sa.column("value", sa.Text))
    op.bulk_insert(meta, [{"key": "generation", "value": "1"}])


def _make_claims() -> None:
    op.create_table(
        "claims",
        sa.Column("request_id", sa.String(length=100), nullable=False),
        sa.Column("incarnation", sa.String(length=100), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("granted", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("request_id"),
    )
    op.create_index("claims_by_time", "claims", ["at_s"])


def _make_classes() -> None:
    op.create_table(
        "classes",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("wanted", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key"),
    )


def _make_counters() -> None:
    op.create_table(
        "counters",
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )


def _make_events() -> None:
    op.create_table(
        "events",
        sa.Column("id", COUNTED, autoincrement=True, nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("kind", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("machine", sa.String(length=200), server_default="", nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("epoch", sa.BigInteger(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("from_state", sa.String(length=12), server_default="", nullable=False),
        sa.Column("to_state", sa.String(length=12), server_default="", nullable=False),
        sa.Column("fields", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("events_by_job", "events", ["seq", "id"])


def _make_machines() -> None:
    op.create_table(
        "machines",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("incarnation", sa.String(length=100), server_default="", nullable=False),
        sa.Column("outdated", sa.Text(), server_default="", nullable=False),
        sa.Column("boot_id", sa.String(length=100), server_default="", nullable=False),
        sa.Column("version", sa.String(length=40), server_default="", nullable=False),
        sa.Column("capability", sa.Text(), server_default="", nullable=False),
        sa.Column("capability_digest", sa.String(length=64), server_default="", nullable=False),
        sa.Column("slots", sa.Integer(), nullable=True),
        sa.Column("declared", sa.Text(), server_default="", nullable=False),
        sa.Column("first_seen_s", sa.Double(), nullable=False),
        sa.Column("last_seen_s", sa.Double(), nullable=False),
        sa.Column("closed", sa.String(length=12), server_default="", nullable=False),
        sa.Column("why", sa.Text(), server_default="", nullable=False),
        sa.Column("until_s", sa.Double(), nullable=True),
        sa.Column("closed_devices", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def _make_meta() -> None:
    op.create_table(
        "meta",
        sa.Column("key", sa.String(length=100), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )


def _make_policies() -> None:
    op.create_table(
        "policies",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def _make_submissions() -> None:
    op.create_table(
        "submissions",
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("payload", sa.String(length=64), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )


def _make_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("seq", COUNTED, autoincrement=True, nullable=False),
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("number", sa.Integer(), server_default="0", nullable=False),
        sa.Column("label", sa.Text(), server_default="", nullable=False),
        sa.Column("recipe", sa.String(length=200), nullable=False),
        sa.Column("mode", sa.String(length=200), server_default="", nullable=False),
        sa.Column("spec", sa.Text(), nullable=False),
        sa.Column("code", sa.String(length=64), server_default="", nullable=False),
        sa.Column("class_id", sa.Integer(), nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("is_ready", sa.Boolean(), nullable=False),
        sa.Column("blockers", sa.Integer(), server_default="0", nullable=False),
        sa.Column("not_before_s", sa.Double(), server_default="0", nullable=False),
        sa.Column("since_s", sa.Double(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("is_cancelling", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("user_failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lost", sa.Integer(), server_default="0", nullable=False),
        sa.Column("declined", sa.Integer(), server_default="0", nullable=False),
        sa.Column("submitter", sa.String(length=200), server_default="", nullable=False),
        sa.Column("source", sa.Text(), server_default="", nullable=False),
        sa.Column("submitted_s", sa.Double(), nullable=False),
        sa.Column("changed_s", sa.Double(), nullable=False),
        sa.Column("started_s", sa.Double(), nullable=True),
        sa.Column("ended_s", sa.Double(), nullable=True),
        sa.Column("machine", sa.String(length=200), server_default="", nullable=False),
        sa.Column("cause", sa.String(length=40), server_default="", nullable=False),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("hint", sa.Text(), server_default="", nullable=False),
        sa.Column("error", sa.Text(), server_default="", nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("tree", sa.String(length=64), server_default="", nullable=False),
        sa.Column("archive_sha256", sa.String(length=64), server_default="", nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("metrics", sa.Text(), server_default="", nullable=False),
        sa.Column("seconds", sa.Double(), nullable=True),
        sa.Column("checkpoint", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(
            ["class_id"],
            ["classes.id"],
        ),
        sa.PrimaryKeyConstraint("seq"),
        sa.UniqueConstraint("id"),
    )
    op.create_index("jobs_by_machine", "jobs", ["machine", "seq"])
    op.create_index("jobs_by_name", "jobs", ["name", "seq", "number"])
    op.create_index("jobs_by_recipe", "jobs", ["recipe", "state", "seq"])
    op.create_index(
        "jobs_by_source",
        "jobs",
        ["source", "seq"],
        sqlite_where=sa.text("source <> ''"),
        postgresql_where=sa.text("source <> ''"),
    )
    op.create_index("jobs_by_state", "jobs", ["state", "seq"])
    op.create_index(
        "jobs_ready",
        "jobs",
        ["class_id", sa.text("priority DESC"), "seq"],
        sqlite_where=sa.text("state = 'pending' AND is_ready"),
        postgresql_where=sa.text("state = 'pending' AND is_ready"),
    )
    op.create_index(
        "jobs_delayed",
        "jobs",
        ["state", "not_before_s"],
        sqlite_where=sa.text("state = 'pending' AND NOT is_ready AND blockers = 0"),
        postgresql_where=sa.text("state = 'pending' AND NOT is_ready AND blockers = 0"),
    )


def _make_after() -> None:
    op.create_table(
        "after",
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("before_seq", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["before_seq"],
            ["jobs.seq"],
        ),
        sa.ForeignKeyConstraint(
            ["seq"],
            ["jobs.seq"],
        ),
        sa.PrimaryKeyConstraint("seq", "before_seq"),
    )
    op.create_index("after_by_before", "after", ["before_seq"])


def _make_attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("machine", sa.String(length=200), nullable=False),
        sa.Column("incarnation", sa.String(length=100), nullable=False),
        sa.Column("capability", sa.String(length=64), server_default="", nullable=False),
        sa.Column("devices", sa.Text(), server_default="[]", nullable=False),
        sa.Column("granted_s", sa.Double(), nullable=False),
        sa.Column("started_s", sa.Double(), nullable=True),
        sa.Column("ended_s", sa.Double(), nullable=True),
        sa.Column("ending", sa.String(length=12), server_default="", nullable=False),
        sa.Column("cause", sa.String(length=40), server_default="", nullable=False),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("hint", sa.Text(), server_default="", nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("tree", sa.String(length=64), server_default="", nullable=False),
        sa.Column("facts", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(
            ["seq"],
            ["jobs.seq"],
        ),
        sa.PrimaryKeyConstraint("seq", "attempt"),
    )


def _make_bundles() -> None:
    op.create_table(
        "bundles",
        sa.Column("id", COUNTED, autoincrement=True, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("tree", sa.String(length=64), nullable=False),
        sa.Column("archive_sha256", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("is_pinned", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("pruned_s", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["seq"],
            ["jobs.seq"],
        ),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("seq", "attempt"),
    )
    op.create_index("bundles_by_archive", "bundles", ["archive_sha256"])


def _make_leases() -> None:
    op.create_table(
        "leases",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("machine", sa.String(length=200), nullable=False),
        sa.Column("incarnation", sa.String(length=100), nullable=False),
        sa.Column("until_s", sa.Double(), nullable=False),
        sa.Column("devices", sa.Text(), server_default="[]", nullable=False),
        sa.Column("is_shared", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("progress", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(
            ["seq"],
            ["jobs.seq"],
        ),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("leases_by_machine", "leases", ["machine"])
