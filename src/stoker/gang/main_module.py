"""The user's main module in a rank: functions that are defined in a script work there, too.

As multiprocessing does it: the script is imported under another name, so that what stands under
`if __name__ == "__main__"` does not run again.
"""

from __future__ import annotations

import sys
from multiprocessing import spawn
from types import ModuleType

_prepared: list[tuple[str, str]] = []


def main_of(module: ModuleType | None) -> tuple[str, str] | None:
    """Say how a rank can have this process's main module: by name or by path. `None`: it can't."""
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name:
        return ("init_main_from_name", spec.name)
    path = getattr(module, "__file__", None)
    return ("init_main_from_path", path) if path else None


def prepare_main(main: tuple[str, str] | None) -> None:
    """Have the main module of the owner here, once."""
    if main is None or main in _prepared:
        return
    how, where = main
    # It looks whether the module is here under its real name first.
    spawn.prepare({how: where, "sys_argv": sys.argv})
    _prepared.append(main)
