"""Masked values: a program's variables are shown by name only, because they may be tokens and passwords.

The job's folder keeps the values: without them the job could not run again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from stoker.config.compose import ComposedConfig
from stoker.config.sweep import axes_of
from stoker.core.jsontext import dumps, loads
from stoker.core.text import lazy_pattern
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.program import RECIPE, ProgramWords

# `config.json` of a job's folder: the composed values with their origins; of a program also its words and its code.

CONFIG = "config.json"


def config_paper(composed: ComposedConfig | None, program: ProgramWords | None, code: Mapping[str, str]) -> bytes:
    """Return the file's bytes. `code` is the program's own files → digest."""
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
    """Return the configuration that a job was built from; empty if it had none."""
    try:
        config = loads(folder.paper(CONFIG))
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


MASK: Final = "…"
_ENV = "env"
# The origin of an argument contains it as typed, with the value.
_TYPED = lazy_pattern(r"(argument \d+ \((?:\+\+|\+|~)?env(?:\.[^=]*)?=).*\)", re.DOTALL)


def is_secret(recipe: str, path: str) -> bool:
    """Return True if a setting, by its dotted path, may be a secret."""
    return recipe == RECIPE and path.partition(".")[0] == _ENV


def masked(recipe: str, path: str, value: Any) -> Any:
    """Return a value as it may be shown: of a program's variables only the names."""
    if not is_secret(recipe, path):
        return value
    if isinstance(value, dict):
        return dict.fromkeys(value, MASK)
    return MASK if path != _ENV and value is not None else value


def masked_args(recipe: str, args: dict[str, Any]) -> dict[str, Any]:
    """Return a job's arguments as they may be shown."""
    return {name: masked(recipe, name, value) for name, value in args.items()}


def masked_origin(recipe: str, path: str, origin: str) -> str:
    """Return the place of a value without the value that may stand in it."""
    return _TYPED.sub(rf"\1{MASK})", origin) if is_secret(recipe, path) else origin
