"""Scripts as launchers send them, kept byte for byte. STOKER_WRITE_GOLDEN=1 writes them again."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = Path(__file__).parents[2] / "golden/launch"


def same_as_golden(name: str, text: str) -> None:
    """Compare a script with the kept one."""
    path = _FOLDER / name
    if "STOKER_WRITE_GOLDEN" in os.environ:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
