"""Members of the fleet, trees, symptoms and webhooks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# SQLite counts up by itself only in a column that is exactly INTEGER.
COUNTED = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables of enrolment, contents, health and notifications; machines may have left."""
    op.add_column("machines", sa.Column("left_s", sa.Double(), nullable=True))
    op.add_column("machines", sa.Column("report", sa.Text(), server_default="", nullable=False))
    _make_invites()
    _make_tokens()
    _make_certificates()
    _make_contents()
    _make_hooks()
    _make_symptoms()


def _make_invites() -> None:
    op.create_table(
        "invites",
        sa.Column("id", sa.String(length=8), nullable=False),
        sa.Column("role", sa.String(length=12), nullable=False),
        sa.Column("name", sa.String(length=200), server_default="", nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.Column("used_s", sa.Double(), nullable=True),
        sa.Column("request", sa.String(length=64), server_default="", nullable=False),
        sa.Column("answer", sa.Text(), server_default="", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("by", sa.String(length=200), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def _make_tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("role", sa.String(length=12), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("issued_s", sa.Double(), nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=True),
        sa.Column("revoked_s", sa.Double(), nullable=True),
        sa.Column("last_used_s", sa.Double(), nullable=True),
        sa.Column("by", sa.String(length=200), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("sha256"),
    )


def _make_certificates() -> None:
    op.create_table(
        "certificates",
        sa.Column("serial", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("issued_s", sa.Double(), nullable=False),
        sa.Column("expires_s", sa.Double(), nullable=False),
        sa.Column("revoked_s", sa.Double(), nullable=True),
        sa.Column("why", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("serial"),
    )
    op.create_index("certificates_by_name", "certificates", ["name"])


def _make_contents() -> None:
    op.create_table(
        "contents",
        sa.Column("tree", sa.String(length=64), nullable=False),
        sa.Column("listing", sa.String(length=64), nullable=False),
        sa.Column("files", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("at_s", sa.Double(), nullable=False),
        sa.Column("wanted_s", sa.Double(), nullable=False),
        sa.Column("is_pinned", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.PrimaryKeyConstraint("tree"),
    )


def _make_hooks() -> None:
    op.create_table(
        "hooks",
        sa.Column("id", COUNTED, autoincrement=True, nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("kinds", sa.Text(), server_default="", nullable=False),
        sa.Column("jobs", sa.Text(), server_default="", nullable=False),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.Column("is_inner", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failing_since_s", sa.Double(), nullable=True),
        sa.Column("not_before_s", sa.Double(), server_default="0", nullable=False),
        sa.Column("last_error", sa.Text(), server_default="", nullable=False),
        sa.Column("made_s", sa.Double(), nullable=False),
        sa.Column("closed_s", sa.Double(), nullable=True),
        sa.Column("by", sa.String(length=200), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def _make_symptoms() -> None:
    op.create_table(
        "symptoms",
        sa.Column("machine", sa.String(length=200), nullable=False),
        sa.Column("device", sa.String(length=200), nullable=False),
        sa.Column("symptom", sa.String(length=40), nullable=False),
        sa.Column("since_s", sa.Double(), nullable=False),
        sa.Column("told_s", sa.Double(), nullable=False),
        sa.Column("over_s", sa.Double(), nullable=True),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("hint", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("machine", "device", "symptom"),
    )
