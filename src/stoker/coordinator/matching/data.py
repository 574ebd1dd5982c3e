"""A job's code and data and the machines of a fleet, for whoever explains: who has it, who copies how much first.

Pure, from what workers said that they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.model.units import format_duration, format_size
from stoker.wire.leasing import Holdings
from stoker.wire.orders import InputBody


def data_row(inputs: Sequence[InputBody], machine: str, held: Holdings | None) -> dict[str, Any]:
    """Say how a job's data stands on a machine; nothing if it reads none, or nobody knows."""
    if not inputs or held is None:
        return {}
    lacks = [one for one in inputs if not _is_there(one, machine, held)]
    missing_bytes = sum(one.size_bytes for one in lacks)
    rate = held.brings_bytes_per_s
    row: dict[str, Any] = {
        "size_bytes": sum(one.size_bytes for one in inputs),
        "missing_bytes": missing_bytes,
        "about_s": missing_bytes / rate if missing_bytes and rate else None,
    }
    row["text"] = _text(row)
    return row


def first_copies(row: dict[str, Any]) -> str:
    """Say what a machine has to copy before it can start, as the end of a sentence; empty: nothing."""
    return f", and {row['text']} first" if row.get("missing_bytes") else ""


def _is_there(one: InputBody, machine: str, held: Holdings) -> bool:
    # On the machine that it was submitted from it is read where it lies.
    return one.tree in held.trees or (bool(one.host) and one.host == machine)


def _text(row: dict[str, Any]) -> str:
    if not row["missing_bytes"]:
        return f"has its data, {format_size(row['size_bytes'])}"
    about = f" (about {format_duration(row['about_s'])})" if row["about_s"] is not None else ""
    return f"copies {format_size(row['missing_bytes'])} of data{about}"
