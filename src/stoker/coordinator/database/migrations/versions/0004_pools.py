"""Pools of machines that can be started, and allocations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables of pools and allocations."""
    _make_pools()
    _make_allocations()


def _make_pools() -> None:
    op.create_table(
        "pools",
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("is_declared", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("paused", sa.Text(), server_default="", nullable=False),
        sa.Column("watcher", sa.String(length=200), server_default="", nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("watched_until_s", sa.Double(), server_default="0", nullable=False),
        sa.Column("resumed_s", sa.Double(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )


def _make_allocations() -> None:
    op.create_table(
        "allocations",
        sa.Column("id", sa.String(length=8), nullable=False),
        sa.Column("pool", sa.String(length=200), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(length=12), nullable=False),
        sa.Column("backend_id", sa.String(length=200), server_default="", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("wanted", sa.Text(), server_default="", nullable=False),
        sa.Column("planned_s", sa.Double(), nullable=False),
        sa.Column("submitted_s", sa.Double(), nullable=True),
        sa.Column("started_s", sa.Double(), nullable=True),
        sa.Column("serving_s", sa.Double(), nullable=True),
        sa.Column("ends_s", sa.Double(), nullable=True),
        sa.Column("ended_s", sa.Double(), nullable=True),
        sa.Column("cause", sa.String(length=40), server_default="", nullable=False),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("grants", sa.Integer(), server_default="0", nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("allocations_by_end", "allocations", ["ended_s"])
