"""Requests of operators for machines of pools."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table of requests."""
    op.create_table(
        "launch_requests",
        sa.Column("id", sa.String(length=8), nullable=False),
        sa.Column("pool", sa.String(length=200), nullable=False),
        sa.Column("count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("requester", sa.Text(), server_default="", nullable=False),
        sa.Column("requested_s", sa.Double(), nullable=False),
        sa.Column("done_s", sa.Double(), nullable=True),
        sa.Column("allocations", sa.Text(), server_default="", nullable=False),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("code", sa.String(length=40), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
