"""The manifest of a result: what really happened, kept with it for whoever asks in a year.

Words, configuration, code and data digests are in the result's action already. Here is what no key may hold: versions
of the frameworks that the interpreter has, driver and devices, the cap, the attempt and the last checkpoint; of a
program also what was started, and where.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from stoker.engine.checkpoints import newest_checkpoint
from stoker.host.install import packages_in

if TYPE_CHECKING:
    from stoker.engine.runners.program.launch import Launch
    from stoker.engine.runners.stage_runner import Work

_DRIVER = "/proc/driver/nvidia/version"
_FRAMEWORKS = (
    "torch", "tensorflow", "jax", "jaxlib", "flax", "numpy", "transformers", "peft", "accelerate", "lightning",
    "pytorch_lightning", "keras", "scikit_learn", "xgboost", "lightgbm", "deepspeed",
)  # fmt: skip


def manifest_of_program(launch: Launch, work: Work) -> dict[str, Any]:
    """Return the manifest of a program that ended well."""
    return {"argv": list(launch.argv), "folder": launch.folder, **_made_with(work, frameworks_of(_python_of(launch)))}


def manifest_of_stage(work: Work) -> dict[str, Any]:
    """Return the manifest of a stage that this interpreter did, here or in another process."""
    return _made_with(work, _our_frameworks())


def _made_with(work: Work, frameworks: dict[str, str]) -> dict[str, Any]:
    return {
        "frameworks": frameworks,
        "driver": _driver(),
        "devices": list(work.devices),
        "memory_bytes": work.memory_bytes,
        "attempt": work.attempt,
        "checkpoint": newest_checkpoint(work.scratch) if work.scratch else None,
    }


# Neither changes while a process runs, and there may be thousands of results.
@cache
def _our_frameworks() -> dict[str, str]:
    return frameworks_of(sys.executable)


def _python_of(launch: Launch) -> str:
    """Return the interpreter of the program's environment; if it has none of its own, the program itself may be one."""
    prefix = launch.env.get("VIRTUAL_ENV", "")
    return os.path.join(prefix, "bin", "python") if prefix else launch.argv[0]


def frameworks_of(python: str) -> dict[str, str]:
    """Return the versions of frameworks that an interpreter's own environment has, without starting it."""
    found = packages_in(os.path.dirname(os.path.dirname(python)))
    return {name: found[name.replace("_", "-")] for name in _FRAMEWORKS if name.replace("_", "-") in found}


@cache
def _driver() -> str:
    try:
        with open(_DRIVER, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()[:200]
    except OSError:
        return ""
