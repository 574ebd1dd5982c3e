"""A user's systemd of our own, in namespaces of its own, for as long as one command runs beside it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.host.resources import own_group
from tests.unit.host.real_processes import wait_until

ROOT = Path(__file__).parents[3]
SYSTEMD = "/lib/systemd/systemd"
PATIENCE_S = 60.0

BESIDE = Path(__file__).with_name("beside_systemd.sh")


def run_beside_systemd(command: Sequence[str], folder: Path) -> str:
    """Run a command with a user's systemd of its own; give its output. Skips where that can't be."""
    names = groups_of_ours()
    env = {
        **os.environ,
        "GROUPS_OF_OURS": " ".join(names),
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "XDG_RUNTIME_DIR": str(folder),
    }
    folder.chmod(0o700)
    try:
        ran = subprocess.run(
            ["bash", str(BESIDE), *command],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
    finally:
        remove_groups(names)
    if ran.returncode == 77 or "unshare:" in ran.stderr:
        pytest.skip(f"a systemd of our own can't be had here: {ran.stderr.strip()[-300:]}")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def groups_of_ours() -> list[str]:
    """Make control groups for a systemd; skips where there can be none."""
    if os.getuid() != 0 or not os.path.exists(SYSTEMD):
        pytest.skip("a systemd of our own needs root, and to be installed")
    groups = [_made(found) for found in (own_group("", 2), own_group("name=systemd", 1)) if found is not None]
    if not groups or None in groups:
        pytest.skip("no control groups of version 2 that are ours to write")
    return [str(group) for group in groups]


def remove_groups(names: Sequence[str]) -> None:
    """Remove them, once nobody is in them any more."""
    wait_until(lambda: all(map(_is_removed, names)))


def _made(place: str) -> str | None:
    folder = os.path.join(place, f"test-systemd-{os.getpid()}")
    try:
        os.mkdir(folder)
    except OSError:
        return None
    return folder


def _is_removed(folder: str) -> bool:
    for below, _, _ in sorted(os.walk(folder), reverse=True):
        with suppress(OSError):
            os.rmdir(below)
    return not os.path.exists(folder)
