"""A user's systemd of its own beside a side, in groups that are made for it and removed again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from stoker.host.resources import own_group

BESIDE = Path(__file__).resolve().parents[2] / "tests" / "unit" / "host" / "beside_systemd.sh"


def is_there() -> bool:
    """Return whether this process was started beside one."""
    return "GROUPS_OF_OURS" in os.environ


def start_again(home: Path) -> int:
    """Starts this very script once more, beside a systemd; gives its exit status."""
    home.chmod(0o700)
    places = [place for place in (own_group("", 2), own_group("name=systemd", 1)) if place is not None]
    groups = [os.path.join(place, f"bench-systemd-{os.getpid()}") for place in places]
    for group in groups:
        os.mkdir(group)
    environment = {**os.environ, "GROUPS_OF_OURS": " ".join(groups), "XDG_RUNTIME_DIR": str(home)}
    try:
        return subprocess.run(["bash", str(BESIDE), sys.executable, *sys.argv], env=environment, check=False).returncode
    finally:
        for group in groups:
            _remove(group)


def _remove(group: str) -> None:
    for _ in range(100):
        for below, _, _ in sorted(os.walk(group), reverse=True):
            try:
                os.rmdir(below)
            except OSError:
                time.sleep(0.05)
        if not os.path.exists(group):
            return
