"""The manifest of a program that ran: what really happened, kept with its result for whoever asks in a year.

Its words, configuration and data digests are in the result's action already. Here is what no key may hold: the
interpreter, versions of the frameworks it has, driver and devices, the cap, and the last checkpoint.
"""

from __future__ import annotations

import os
from typing import Any

from stoker.host.installed import packages_in
from stoker.plan.checkpoints import newest_checkpoint
from stoker.plan.program.launch import Launch
from stoker.plan.runner import Work

_DRIVER = "/proc/driver/nvidia/version"
_FRAMEWORKS = (
    "torch", "tensorflow", "jax", "jaxlib", "flax", "numpy", "transformers", "peft", "accelerate", "lightning",
    "pytorch_lightning", "keras", "scikit_learn", "xgboost", "lightgbm", "deepspeed",
)  # fmt: skip


def manifest_of(launch: Launch, work: Work) -> dict[str, Any]:
    """Give the manifest of an attempt that ended well."""
    return {
        "argv": list(launch.argv),
        "folder": launch.folder,
        "frameworks": frameworks_of(_python_of(launch)),
        "driver": _driver(),
        "devices": list(work.devices),
        "memory_bytes": work.memory_bytes,
        "attempt": work.attempt,
        "checkpoint": newest_checkpoint(work.scratch),
    }


def _python_of(launch: Launch) -> str:
    """Give the interpreter of the program's environment; if it has none of its own, the program itself may be one."""
    prefix = launch.env.get("VIRTUAL_ENV", "")
    return os.path.join(prefix, "bin", "python") if prefix else launch.argv[0]


def frameworks_of(python: str) -> dict[str, str]:
    """Give the versions of frameworks that an interpreter's own environment has, without starting it."""
    found = packages_in(os.path.dirname(os.path.dirname(python)))
    return {name: found[name.replace("_", "-")] for name in _FRAMEWORKS if name.replace("_", "-") in found}


def _driver() -> str:
    try:
        with open(_DRIVER, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()[:200]
    except OSError:
        return ""
