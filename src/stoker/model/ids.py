"""Ids: of jobs (what is wanted) and of attempts (one try at it).

A job's id is a digest of everything that changes its result and nothing else. An attempt's id sorts by time and is
short enough to type a prefix of.
"""

from __future__ import annotations

from datetime import datetime

from stoker.model.digests import Digest, digest_value

JOB_ID_SCHEMA = 1


def job_id(
    *, recipe: str, schema_version: int, args: dict[str, object], mode: str = "", seed: int | None = None
) -> Digest:
    """Give the id of a job from what it is; `args` are identity args, defaults filled, files as their digests."""
    return digest_value(
        "job",
        {
            "schema": JOB_ID_SCHEMA,
            "recipe": recipe,
            "recipe_schema": schema_version,
            "mode": mode,
            "args": args,
            "seed": seed,
            "split_recipe": None,
            "train_hosts": [],
        },
    )


def attempt_id(started: datetime, entropy: int) -> str:
    """Give an attempt's id: `20261115-031502-7f3a09c1`, later ones sorting after earlier ones."""
    return f"{started:%Y%m%d-%H%M%S}-{entropy & 0xFFFFFFFF:08x}"
