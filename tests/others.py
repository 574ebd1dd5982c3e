"""Other users of this machine, in tests that run as root."""

from __future__ import annotations

from pathlib import Path


def let_others_in(folder: Path) -> None:
    """Let everybody enter a test's own folder; of those above it, only what nobody else could enter is changed."""
    folder.chmod(0o755)
    for above in folder.parents:
        if not above.stat().st_mode & 0o001:
            above.chmod(0o755)
