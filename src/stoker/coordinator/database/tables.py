"""The tables, for SQLite and PostgreSQL alike. `migrations/` makes them; a test holds the two together.

Only coordinator time is stored. Columns that end in `_s` are seconds since 1970; JSON is text, written by us and read
back whole. A job's row changes with its moves; what changes with every heartbeat lives in `leases`, a row per live job.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

METADATA = MetaData()
# SQLite counts up by itself only in a column that is exactly INTEGER.
COUNTED = BigInteger().with_variant(Integer, "sqlite")

META = Table(
    "meta",
    METADATA,
    Column("key", String(100), primary_key=True),
    Column("value", Text, nullable=False),
)
"""`generation`, and `clock_s`: the latest time ever stored, so that time never goes back."""
EVENTS_FROM_S = "events_from_s"
"""A key of `meta`: events of jobs that had ended before this time may have been dropped."""
EVENTS_DROPPED_TO = "events_dropped_to"
"""A key of `meta`: the newest event that was."""
FLEET = "fleet"
"""A key of `meta`: the fleet's id in the labels of its allocations at backends."""

CLASSES = Table(
    "classes",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("key", String(64), nullable=False, unique=True),
    Column("wanted", Text, nullable=False),
)
"""Requirement classes: jobs that any machine treats alike. Pending jobs are kept apart by them."""

JOBS = Table(
    "jobs",
    METADATA,
    Column("seq", COUNTED, primary_key=True, autoincrement=True),
    Column("id", String(64), nullable=False, unique=True),
    Column("name", String(200), nullable=False),
    Column("number", Integer, nullable=False, server_default="0"),
    Column("label", Text, nullable=False, server_default=""),
    Column("recipe", String(200), nullable=False),
    Column("mode", String(200), nullable=False, server_default=""),
    Column("spec", Text, nullable=False),
    Column("code", String(64), nullable=False, server_default=""),
    Column("class_id", Integer, ForeignKey("classes.id"), nullable=False),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("state", String(12), nullable=False),
    Column("is_ready", Boolean, nullable=False),
    Column("blockers", Integer, nullable=False, server_default="0"),
    Column("not_before_s", Double, nullable=False, server_default="0"),
    Column("since_s", Double, nullable=False),
    Column("epoch", BigInteger, nullable=False, server_default="0"),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("is_cancelling", Boolean, nullable=False, server_default=text("false")),
    Column("user_failures", Integer, nullable=False, server_default="0"),
    Column("lost", Integer, nullable=False, server_default="0"),
    Column("declined", Integer, nullable=False, server_default="0"),
    Column("submitter", String(200), nullable=False, server_default=""),
    Column("source", Text, nullable=False, server_default=""),
    Column("submitted_s", Double, nullable=False),
    Column("changed_s", Double, nullable=False),
    Column("started_s", Double),
    Column("ended_s", Double),
    Column("machine", String(200), nullable=False, server_default=""),
    Column("cause", String(40), nullable=False, server_default=""),
    Column("message", Text, nullable=False, server_default=""),
    Column("hint", Text, nullable=False, server_default=""),
    Column("error", Text, nullable=False, server_default=""),
    Column("exit_code", Integer),
    Column("tree", String(64), nullable=False, server_default=""),
    Column("archive_sha256", String(64), nullable=False, server_default=""),
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),
    Column("metrics", Text, nullable=False, server_default=""),
    Column("seconds", Double),
    Column("checkpoint", Text, nullable=False, server_default=""),
    # The head of a class is the first row of this index, however many wait behind it.
    Index(
        "jobs_ready",
        "class_id",
        text("priority DESC"),
        "seq",
        sqlite_where=text("state = 'pending' AND is_ready"),
        postgresql_where=text("state = 'pending' AND is_ready"),
    ),
    # Its condition stands in its columns too: without, SQLite prefers to go through all that are pending.
    Index(
        "jobs_delayed",
        "state",
        "not_before_s",
        sqlite_where=text("state = 'pending' AND NOT is_ready AND blockers = 0"),
        postgresql_where=text("state = 'pending' AND NOT is_ready AND blockers = 0"),
    ),
    # Lists: each filter finds its newest rows in order, and a completed job of a recipe is found among very many.
    Index("jobs_by_name", "name", "seq", "number"),
    Index("jobs_by_state", "state", "seq"),
    Index("jobs_by_recipe", "recipe", "state", "seq"),
    Index("jobs_by_machine", "machine", "seq"),
    Index("jobs_by_submitter", "submitter", "seq"),
    # Orders of lists. Those that change with each move are few: a claim pays for them.
    Index("jobs_by_start", "started_s", "seq"),
    Index("jobs_by_priority", "priority", "seq"),
    Index(
        "jobs_by_end",
        "state",
        "ended_s",
        "seq",
        sqlite_where=text("ended_s IS NOT NULL"),
        postgresql_where=text("ended_s IS NOT NULL"),
    ),
    # A class goes once no job is of it: without, each that goes is looked for among all jobs.
    Index("jobs_by_class", "class_id"),
    Index(
        "jobs_by_source",
        "source",
        "seq",
        sqlite_where=text("source <> ''"),
        postgresql_where=text("source <> ''"),
    ),
)

AFTER = Table(
    "after",
    METADATA,
    Column("seq", BigInteger, ForeignKey("jobs.seq"), primary_key=True),
    Column("before_seq", BigInteger, ForeignKey("jobs.seq"), primary_key=True),
    Index("after_by_before", "before_seq"),
)
"""`seq` waits until `before_seq` has completed."""

LEASES = Table(
    "leases",
    METADATA,
    Column("seq", BigInteger, ForeignKey("jobs.seq"), primary_key=True, autoincrement=False),
    Column("attempt", Integer, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("machine", String(200), nullable=False),
    Column("incarnation", String(100), nullable=False),
    Column("until_s", Double, nullable=False),
    Column("devices", Text, nullable=False, server_default="[]"),
    Column("is_shared", Boolean, nullable=False, server_default=text("false")),
    Column("progress", Text, nullable=False, server_default=""),
    Index("leases_by_machine", "machine"),
)

ATTEMPTS = Table(
    "attempts",
    METADATA,
    Column("seq", BigInteger, ForeignKey("jobs.seq"), primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("machine", String(200), nullable=False),
    Column("incarnation", String(100), nullable=False),
    Column("capability", String(64), nullable=False, server_default=""),
    Column("devices", Text, nullable=False, server_default="[]"),
    Column("granted_s", Double, nullable=False),
    Column("started_s", Double),
    Column("ended_s", Double),
    Column("ending", String(12), nullable=False, server_default=""),
    Column("cause", String(40), nullable=False, server_default=""),
    Column("message", Text, nullable=False, server_default=""),
    Column("hint", Text, nullable=False, server_default=""),
    Column("exit_code", Integer),
    Column("tree", String(64), nullable=False, server_default=""),
    Column("facts", Text, nullable=False, server_default=""),
)

EVENTS = Table(
    "events",
    METADATA,
    Column("id", COUNTED, primary_key=True, autoincrement=True),
    Column("at_s", Double, nullable=False),
    Column("kind", String(40), nullable=False),
    Column("seq", BigInteger),
    Column("machine", String(200), nullable=False, server_default=""),
    Column("attempt", Integer),
    Column("epoch", BigInteger),
    Column("generation", Integer, nullable=False),
    Column("from_state", String(12), nullable=False, server_default=""),
    Column("to_state", String(12), nullable=False, server_default=""),
    Column("fields", Text, nullable=False, server_default=""),
    Index("events_by_job", "seq", "id"),
)
"""Every move is one row, written in the same transaction."""

MACHINES = Table(
    "machines",
    METADATA,
    Column("name", String(200), primary_key=True),
    Column("incarnation", String(100), nullable=False, server_default=""),
    Column("outdated", Text, nullable=False, server_default=""),
    Column("boot_id", String(100), nullable=False, server_default=""),
    Column("version", String(40), nullable=False, server_default=""),
    Column("capability", Text, nullable=False, server_default=""),
    Column("capability_digest", String(64), nullable=False, server_default=""),
    Column("slots", Integer),
    Column("declared", Text, nullable=False, server_default=""),
    Column("first_seen_s", Double, nullable=False),
    Column("last_seen_s", Double, nullable=False),
    Column("closed", String(12), nullable=False, server_default=""),
    Column("why", Text, nullable=False, server_default=""),
    Column("until_s", Double),
    Column("closed_devices", Text, nullable=False, server_default=""),
    Column("left_s", Double),
    Column("report", Text, nullable=False, server_default=""),
)
"""`left_s`: when its worker said goodbye; `outdated`: JSON, incarnations before this one; `closed`: empty, drained,
cordoned or paused; `closed_devices`: JSON, uuid → why; `report`: JSON, what its worker last found out about it.
"""

POLICIES = Table(
    "policies",
    METADATA,
    Column("name", String(200), primary_key=True),
    Column("policy", Text, nullable=False),
    Column("source", Text, nullable=False, server_default=""),
)
"""What submitted manifests say about machines."""

CLAIMS = Table(
    "claims",
    METADATA,
    Column("request_id", String(100), primary_key=True),
    Column("incarnation", String(100), nullable=False),
    Column("at_s", Double, nullable=False),
    Column("granted", Text, nullable=False),
    Index("claims_by_time", "at_s"),
)
"""Which (seq, epoch) a request was granted, so that its repeat gets the same answer."""

SUBMISSIONS = Table(
    "submissions",
    METADATA,
    Column("key", String(200), primary_key=True),
    Column("payload", String(64), nullable=False),
    Column("at_s", Double, nullable=False),
    Column("answer", Text, nullable=False),
)

BUNDLES = Table(
    "bundles",
    METADATA,
    Column("id", COUNTED, primary_key=True, autoincrement=True),
    Column("seq", BigInteger, ForeignKey("jobs.seq"), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("tree", String(64), nullable=False),
    Column("archive_sha256", String(64), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("at_s", Double, nullable=False),
    Column("is_pinned", Boolean, nullable=False, server_default=text("false")),
    Column("pruned_s", Double),
    UniqueConstraint("seq", "attempt"),
    Index("bundles_by_archive", "archive_sha256"),
)
"""The append-only index of results: rows are added, and later marked as pruned, never changed otherwise."""

COUNTERS = Table(
    "counters",
    METADATA,
    Column("key", String(200), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
"""Kept by the writer in the same transaction: `state:pending` … and `class:7` (its ready jobs)."""

INVITES = Table(
    "invites",
    METADATA,
    Column("id", String(8), primary_key=True),
    Column("role", String(12), nullable=False),
    Column("name", String(200), nullable=False, server_default=""),
    Column("key", String(64), nullable=False),
    Column("made_s", Double, nullable=False),
    Column("expires_s", Double, nullable=False),
    Column("used_s", Double),
    Column("request", String(64), nullable=False, server_default=""),
    Column("answer", Text, nullable=False, server_default=""),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("by", String(200), nullable=False, server_default=""),
)
"""`key`: what the code stretches to, gone once it is used; `request`: digest of the words it was used with, so that
their repeat gets the same `answer`.
"""

TOKENS = Table(
    "tokens",
    METADATA,
    Column("id", String(16), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("role", String(12), nullable=False),
    Column("sha256", String(64), nullable=False, unique=True),
    Column("issued_s", Double, nullable=False),
    Column("expires_s", Double),
    Column("revoked_s", Double),
    Column("last_used_s", Double),
    Column("by", String(200), nullable=False, server_default=""),
)

CERTIFICATES = Table(
    "certificates",
    METADATA,
    Column("serial", String(40), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("issued_s", Double, nullable=False),
    Column("expires_s", Double, nullable=False),
    Column("revoked_s", Double),
    Column("why", Text, nullable=False, server_default=""),
    Index("certificates_by_name", "name"),
)
"""Of machines. A certificate that is not here was not issued by us."""

CONTENTS = Table(
    "contents",
    METADATA,
    Column("tree", String(64), primary_key=True),
    Column("listing", String(64), nullable=False),
    Column("files", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("at_s", Double, nullable=False),
    Column("wanted_s", Double, nullable=False),
    Column("is_pinned", Boolean, nullable=False, server_default=text("false")),
)
"""Completely stored trees of code and data. `listing`: the object with a tree's file list; `wanted_s`: when it was last
requested for a submission.
"""

HOOKS = Table(
    "hooks",
    METADATA,
    Column("id", COUNTED, primary_key=True, autoincrement=True),
    Column("url", Text, nullable=False),
    Column("secret", Text, nullable=False),
    Column("kinds", Text, nullable=False, server_default=""),
    Column("jobs", Text, nullable=False, server_default=""),
    Column("cursor", BigInteger, nullable=False),
    Column("is_inner", Boolean, nullable=False, server_default=text("false")),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("failing_since_s", Double),
    Column("not_before_s", Double, nullable=False, server_default="0"),
    Column("last_error", Text, nullable=False, server_default=""),
    Column("made_s", Double, nullable=False),
    Column("closed_s", Double),
    Column("by", String(200), nullable=False, server_default=""),
    Column("format", String(20), nullable=False, server_default="stoker"),
)
"""Webhooks. `kinds`, `jobs` (their numbers): JSON, empty for all; `cursor`: the last delivered event; `is_inner`:
created by an admin, so that addresses of this machine and of private networks are allowed.
"""

SYMPTOMS = Table(
    "symptoms",
    METADATA,
    Column("machine", String(200), primary_key=True),
    Column("device", String(200), primary_key=True),
    Column("symptom", String(40), primary_key=True),
    Column("since_s", Double, nullable=False),
    Column("told_s", Double, nullable=False),
    Column("over_s", Double),
    Column("message", Text, nullable=False, server_default=""),
    Column("hint", Text, nullable=False, server_default=""),
)
"""Symptoms of machines and devices (`device` is empty for a whole machine), with an event once an hour at most."""

POOLS = Table(
    "pools",
    METADATA,
    Column("name", String(200), primary_key=True),
    Column("pool", Text, nullable=False),
    Column("is_declared", Boolean, nullable=False, server_default=text("true")),
    Column("paused", Text, nullable=False, server_default=""),
    Column("watcher", String(200), nullable=False, server_default=""),
    Column("epoch", BigInteger, nullable=False, server_default="0"),
    Column("watched_until_s", Double, nullable=False, server_default="0"),
    Column("resumed_s", Double, nullable=False, server_default="0"),
)
"""`pool`: JSON, as in the cluster file; `paused`: why it starts nothing; `epoch`: rises with each change of `watcher`.
A pool that is no longer declared stays until its last allocation has ended.
"""

ALLOCATIONS = Table(
    "allocations",
    METADATA,
    Column("id", String(8), primary_key=True),
    Column("pool", String(200), nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("state", String(12), nullable=False),
    Column("backend_id", String(200), nullable=False, server_default=""),
    Column("reason", Text, nullable=False, server_default=""),
    Column("wanted", Text, nullable=False, server_default=""),
    Column("planned_s", Double, nullable=False),
    Column("submitted_s", Double),
    Column("may_start_s", Double),
    Column("started_s", Double),
    Column("serving_s", Double),
    Column("ends_s", Double),
    Column("signalled_s", Double),
    Column("ended_s", Double),
    Column("cause", String(40), nullable=False, server_default=""),
    Column("message", Text, nullable=False, server_default=""),
    Column("grants", Integer, nullable=False, server_default="0"),
    Column("idle_s", Double, nullable=False, server_default="0"),
    # Those that have not ended, and the newest that have.
    Index("allocations_by_end", "ended_s"),
)
"""What was requested of backends. `epoch`: the pool's when it was planned; `wanted`: JSON, names of jobs. The ticket of
one is the row of `invites` with its id in capitals; it is deleted when the allocation ends.
"""

LAUNCH_REQUESTS = Table(
    "launch_requests",
    METADATA,
    Column("id", String(8), primary_key=True),
    Column("pool", String(200), nullable=False),
    Column("count", Integer, nullable=False, server_default="0"),
    Column("requester", Text, nullable=False, server_default=""),
    Column("requested_s", Double, nullable=False),
    Column("done_s", Double),
    Column("allocations", Text, nullable=False, server_default=""),
    Column("message", Text, nullable=False, server_default=""),
    Column("code", String(40), nullable=False, server_default=""),
)
"""Machines that operators requested of pools. `count` 0: as many as waiting jobs need; `done_s`: when allocations were
planned for it (`allocations`: JSON, their ids), or when it was closed without any (`message`: why; `code`: of the
error).
"""
