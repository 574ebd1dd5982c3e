"""When an allocation may start, and how long its worker had no job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add both to allocations."""
    op.add_column("allocations", sa.Column("may_start_s", sa.Double(), nullable=True))
    op.add_column("allocations", sa.Column("idle_s", sa.Double(), nullable=False, server_default="0"))
