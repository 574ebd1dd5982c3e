"""`python.json` of a job's folder: which interpreter runs a program, and which packages it has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.model.json_text import dumps, loads
from stoker.worker.job_folder import JobFolder

PYTHON = "python.json"


def python_paper(facts: Mapping[str, Any]) -> bytes:
    """Write it."""
    return dumps({"v": 1, **facts}, indent=1).encode()


def read_python(folder: JobFolder) -> dict[str, Any]:
    """Give what was written down of a job's interpreter; empty if it had none of its own."""
    try:
        told = loads(folder.paper(PYTHON))
    except ValueError:
        return {}
    return {name: value for name, value in told.items() if name != "v"} if isinstance(told, dict) else {}
