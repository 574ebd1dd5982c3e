"""When the worker of an allocation was signalled to end."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add it to allocations. What drains now counts as signalled: a second signal would mean: at once."""
    op.add_column("allocations", sa.Column("signalled_s", sa.Double(), nullable=True))
    op.execute("UPDATE allocations SET signalled_s = planned_s WHERE state = 'draining'")
