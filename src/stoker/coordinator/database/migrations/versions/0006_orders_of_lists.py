"""Jobs are listed by submitter, and in the order of start, end and priority."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Let lists find their jobs in order."""
    op.create_index("jobs_by_submitter", "jobs", ["submitter", "seq"])
    op.create_index("jobs_by_start", "jobs", ["started_s", "seq"])
    op.create_index("jobs_by_priority", "jobs", ["priority", "seq"])
    ended = sa.text("ended_s IS NOT NULL")
    op.create_index("jobs_by_end", "jobs", ["state", "ended_s", "seq"], sqlite_where=ended, postgresql_where=ended)
