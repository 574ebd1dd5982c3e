"""The protocol's version and what every request and answer has in common.

A coordinator speaks its own version and the one before; a header of every request says which one the other side
speaks. Readers pass over fields they do not know; a field never changes its meaning under one version.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

VERSION = 1
OLDEST = 1
"""The oldest version that is still understood."""
VERSION_HEADER = "X-Stoker-Protocol"
TOKEN_HEADER = "X-Operator-Token"  # noqa: S105 - the header's name


class Message(BaseModel):
    """What one program tells another. Unknown fields are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")


class Asked(BaseModel):
    """What a person's program asks for. Unknown fields are refused: a misspelt one would be silently without effect."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")
