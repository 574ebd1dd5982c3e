"""Grants as tests write them: the job's fields beside those of the lease, as in JSON."""

from __future__ import annotations

from typing import Any

from stoker.protocol.lease_messages import Grant


def grant_of(**fields: Any) -> Grant:
    """Return a checked grant."""
    return Grant.model_validate(fields)
