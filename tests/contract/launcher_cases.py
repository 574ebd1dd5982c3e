"""Backends for the contract of launchers, each with a stand-in for Stoker that does what a test writes into a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from stoker.core.frozen import changed, fresh, frozen
from stoker.core.pool import Allocation, AllocationState, Pool
from stoker.launch.launchers import AllocationStatus, Launcher

SECRET = "5ec7e7" * 10
_SECONDS = 20.0

# A stand-in for the interpreter: it keeps its arguments, its environment and its ticket, then does as it is told.
STAND_IN = """\
#!/bin/sh
here={folder}
case "$1 $2" in "-c "*socket*) exec python3 "$@" ;; "-c "*) echo "3.11.7 $(cat "$here/version")"; exit 0 ;; esac
while [ "$#" -gt 0 ]; do [ "$1" = --ticket ] && ticket=$2; echo "$1"; shift; done > "$here/arguments.$$"
env > "$here/environment.$$"
cp "$ticket" "$here/ticket.$$" && mv "$here/arguments.$$" "$here/arguments"
echo "the worker started"
[ -f "$here/exit" ] && exit "$(cat "$here/exit")"
exec sleep 600
"""


@frozen
class LauncherCase:
    """One backend with a pool of it."""

    launcher: Launcher
    pool: Pool
    folder: Path
    """Of the stand-in."""
    break_answer: Callable[[], Launcher]
    """Return a launcher whose next submit succeeds but whose answer is lost."""
    unreachable: Pool
    """A pool of the same backend whose host or server does not respond."""
    network: Callable[[], AbstractContextManager[None]] = nullcontext
    """Where the host of the backend's commands has its connections."""
    sees_far_side: bool = True
    """False: the backend does not show what is installed there."""
    fleet: str = fresh(factory=lambda: os.urandom(3).hex())
    """One per test: a backend still shows what others ended."""
    submitted: dict[str, Allocation] = fresh(factory=dict)

    def ids(self, count: int = 1) -> list[Allocation]:
        return [Allocation(id=os.urandom(3).hex(), pool=self.pool.name) for _ in range(count)]

    def submit(self, allocations: Sequence[Allocation]) -> dict[str, str]:
        rendered = self.launcher.render(self.pool, allocations, fleet=self.fleet)
        made = dict(self.launcher.submit(rendered, tickets(allocations)))
        self.submitted.update({one.id: changed(one, backend_id=made[one.id]) for one in allocations})
        return made

    def look(self, fleet: str = "") -> dict[str, AllocationStatus]:
        return {one.id: one for one in self.launcher.look(self.pool, fleet=fleet or self.fleet)}

    def look_for(self, id: str) -> AllocationStatus | None:
        """Look for one that was submitted: Slurm forgets a member of an array that is cancelled before it starts."""
        known = [one for one in self.submitted.values() if one.id == id]
        found = self.launcher.look(self.pool, fleet=self.fleet, known=known)
        return next((one for one in found if one.id == id), None)

    def wait(self, id: str, state: AllocationState) -> AllocationStatus:
        """Look until an allocation is in a state."""
        deadline_s = time.monotonic() + _SECONDS
        while True:
            found = self.look_for(id)
            if found is not None and found.state is state:
                return found
            assert time.monotonic() < deadline_s, f"{id} is not {state} but {found}"
            time.sleep(0.1)


def make_stand_in(folder: Path, version: str) -> Path:
    """Return the path of the stand-in."""
    folder.mkdir(parents=True)
    path = folder / "python"
    path.write_text(STAND_IN.format(folder=folder))
    path.chmod(0o755)
    (folder / "version").write_text(version)
    return path


def tickets(allocations: Sequence[Allocation]) -> dict[str, str]:
    """Return tickets with a secret that must be nowhere else."""
    return {
        one.id: f'{{"v": 1, "id": "{one.id.upper()}", "key": "{SECRET}", "name": "{one.machine}"}}\n'
        for one in allocations
    }
