"""Classes that no job is of any more are dropped."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Let jobs be found by their class."""
    op.create_index("jobs_by_class", "jobs", ["class_id"])
