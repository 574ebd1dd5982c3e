"""What becomes of an environment on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from stoker.model.frozen import fresh, frozen


@frozen
class Ready:
    """It is there."""

    digest: str
    """Of the choice; empty for the machine's own interpreter."""
    key: str
    """What its folder is called; empty for the machine's own interpreter."""
    interpreter: str
    version: str = ""
    base: str = ""
    """The machine's interpreter that it was made with."""
    packages: Mapping[str, str] = fresh(factory=dict)
    """Name → version."""
    local: tuple[str, ...] = ()
    """Folders of the project's other packages, below the project."""
    uv: str = ""
    seconds: float = 0.0
    """How long its making took."""
    size_bytes: int = 0

    def python_path(self, workspace: str) -> tuple[str, ...]:
        """Give what goes on `PYTHONPATH` so that a workspace's own packages are found; nothing is looked at twice."""
        found = []
        for folder in (".", *self.local):
            top = os.path.normpath(os.path.join(workspace, folder))
            inner = os.path.join(top, "src")
            found += [inner, top] if os.path.isdir(inner) else [top]
        return tuple(dict.fromkeys(found))

    def facts(self) -> dict[str, Any]:
        """Give what a result tells of where it was made: which interpreter, which packages."""
        told: dict[str, Any] = {"interpreter": self.interpreter, "python": self.version}
        if self.digest:
            told |= {"environment": self.digest, "uv": self.uv}
        return {**told, "packages": dict(self.packages)}


@frozen
class Impossible:
    """It can't be made on this machine as it is."""

    digest: str
    why: str


@frozen
class Failed:
    """Its making failed by something that may pass: the network, the disk. Another machine may do better."""

    digest: str
    why: str


Answer = Ready | Impossible | Failed
