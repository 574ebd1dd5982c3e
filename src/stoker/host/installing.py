"""How something is installed for this very interpreter: a plain `pip` may well be that of another environment."""

from __future__ import annotations

import shlex
import sys


def pip_install(*names: str) -> str:
    """Give the command that installs distributions here, as it is pasted into a shell."""
    return shlex.join((sys.executable, "-m", "pip", "install", *names))
