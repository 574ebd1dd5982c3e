"""Webhooks in the formats of other services."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Let a webhook have a format."""
    op.add_column("hooks", sa.Column("format", sa.String(20), nullable=False, server_default="stoker"))
