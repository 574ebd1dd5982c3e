"""`config.json` of a job's folder: what its values were composed of; of a program, its words and its code as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.config.composed import Composed
from stoker.config.sweep import axes_of
from stoker.model.json_text import dumps, loads
from stoker.worker.job_folder import JobFolder
from stoker.worker.program_order import ProgramWords

CONFIG = "config.json"


def config_paper(composed: Composed | None, program: ProgramWords | None, code: Mapping[str, str]) -> bytes:
    """Write it. `code` are the program's own files, each with the digest of what it holds."""
    said: dict[str, Any] = {"v": 1}
    if composed is not None:
        axes = axes_of(composed.sweep) if composed.sweep else ()
        said |= composed.record()
        said |= {"identity": composed.identity(), "full": composed.full()}
        said |= {"sweep": {axis.path: str(axis.origin or "") for axis in axes}}
    if program is not None:
        said |= {"program": list(program.argv), "code": dict(code)}
    return dumps(said, indent=1).encode()


def read_config(folder: JobFolder) -> dict[str, Any]:
    """Give the configuration that a job was ordered with; empty if it had none."""
    try:
        config = loads(folder.paper(CONFIG))
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}
