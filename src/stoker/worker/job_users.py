"""The users that a worker's jobs run as: one for each job at a time, so that none can read another's.

    state/worker/NAME/users/UID     the attempt that runs as this user

A worker that takes over reads there which are in use. Between two jobs all processes of a user are killed. Programs of
jobs run so; recipes of cookbooks, which are our own and the machine owner's code, run as the worker.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress

from stoker.core.clock import Clock
from stoker.core.errors import BadInput, LockHeld, ProcessLost
from stoker.host.durable import read_regular, translated, write_file
from stoker.host.folders import PASSED_THROUGH, HomeFolder
from stoker.host.locks import FileLock
from stoker.host.user_switch import end_everybody_of, is_of_a_job, processes_of
from stoker.host.users import OtherUser, acting_as, why_not_allowed

USERS = "users"
"""The folder beside a worker's other files."""
_LARGEST_BYTES = 200
# Everything else of a home is for its owner alone. What lies in these is passed through or read, and never listed but
# environments, which are the same for all jobs.
_OPEN = {HomeFolder.SCRATCH: PASSED_THROUGH, HomeFolder.WORKSPACES: PASSED_THROUGH, HomeFolder.ENVS: 0o755}


class UserPool:
    """The users of a worker, free and taken."""

    def __init__(self, users: Iterable[OtherUser], folder: str, clock: Clock) -> None:
        self._users = tuple(users)
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._taken: dict[str, OtherUser] = {}

    def open(self, adopted: Iterable[str]) -> None:
        """Start with the adopted attempts of an earlier worker. Kill processes of the other users, which are free."""
        runs = set(adopted)
        with translated(self._folder):
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for user in self._users:
            run = self._written(user)
            if run and run in runs:
                self._taken[run] = user
            else:
                self._free(user)

    def take(self, run: str) -> OtherUser:
        """Return a free user for an attempt; the same one on the next call."""
        with self._lock:
            if run in self._taken:
                return self._taken[run]
            busy = {user.uid for user in self._taken.values()}
            user = next((user for user in self._users if user.uid not in busy), None)
            if user is None:
                raise BadInput("every user that jobs may run as is in use", hint="--run-as with more of them")
            self._taken[run] = user
        write_file(self._path(user), run.encode())
        return user

    def of(self, run: str) -> OtherUser:
        """Return the user of an attempt. Raises `BadInput` if it has none."""
        with self._lock:
            user = self._taken.get(run)
        if user is None:
            raise BadInput(f"attempt {run} has no user", hint="the attempt has ended")
        return user

    def give_back(self, run: str) -> None:
        """Kill the remaining processes of an attempt's user, and make the user free. Idempotent."""
        with self._lock:
            user = self._taken.get(run)
        if user is None:
            return
        # A user with a process that can't be killed stays taken.
        with suppress(ProcessLost):
            self._free(user)
            with self._lock:
                self._taken.pop(run, None)

    def _free(self, user: OtherUser) -> None:
        end_everybody_of(user.uid, self._clock)
        with suppress(FileNotFoundError):
            os.unlink(self._path(user))

    def _written(self, user: OtherUser) -> str:
        try:
            return read_regular(self._path(user), _LARGEST_BYTES).decode()
        except (OSError, ValueError):
            return ""

    def _path(self, user: OtherUser) -> str:
        return os.path.join(self._folder, str(user.uid))


def check_users(users: tuple[OtherUser, ...], *, slots: int, home: str, folder: str) -> None:
    """Raise `BadInput` before a worker starts if jobs can't be kept apart by these users.

    `folder` is the pool's: processes of a user recorded there were left by a job.
    """
    why = why_not_allowed()
    if why:
        raise BadInput(f"programs can't be started as other users: {why}", hint="leave --run-as out, or start as root")
    if len(users) < slots:
        raise BadInput(
            f"{slots} jobs at once need {slots} users, and --run-as names {len(users)}",
            hint=f"--run-as 60000-{60000 + slots - 1}, or --slots {len(users)}",
        )
    seal_home(home)
    for user in users:
        place = why_unreachable(HomeFolder.SCRATCH.below(home), user)
        if place:
            raise BadInput(
                f"{user.name} can't get to {home}: {place} is closed to it",
                hint="STOKER_HOME=/var/lib/stoker, or another folder that all users can traverse",
            )
        is_known = not user.home or os.path.exists(os.path.join(folder, str(user.uid)))
        others = [] if is_known else [row for row in processes_of(user.uid) if not is_of_a_job(row)]
        if others:
            raise BadInput(
                f"{user.name} runs process {others[0].pid} here, and all that runs as a job's user is ended with it",
                hint="name users that have nothing else to run: useradd --system NAME, or --run-as 60000-60003",
            )


def seal_home(home: str) -> None:
    """Close a home to every other user, except for the folders that jobs work in."""
    with translated(home):
        for folder in HomeFolder:
            # Created now: created later, it would be open.
            os.makedirs(folder.below(home), exist_ok=True)
        for folder, mode in _OPEN.items():
            os.chmod(folder.below(home), mode)
        with os.scandir(home) as entries:
            for entry in entries:
                if entry.name not in _OPEN and not entry.is_symlink():
                    os.chmod(entry.path, 0o700 if entry.is_dir() else 0o600)
        os.chmod(home, PASSED_THROUGH)


def why_unreachable(folder: str, user: OtherUser) -> str:
    """Return the folder on the path that a user may not traverse; empty if there is none."""
    parts = [part for part in os.path.abspath(folder).split(os.sep) if part]
    with acting_as(user.uid, user.gid):
        for count in range(1, len(parts) + 1):
            place = os.sep + os.sep.join(parts[:count])
            try:
                os.stat(os.path.join(place, "."))
            except OSError:
                return place
    return ""


def lock_users(users: Iterable[OtherUser], folder: str, clock: Clock) -> list[FileLock]:
    """Lock the users for this worker: two workers would kill each other's jobs. Raises `LockHeld`."""
    with translated(folder):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    held: list[FileLock] = []
    for user in users:
        lock = FileLock(os.path.join(folder, f"{user.uid}.lock"), f"jobs as {user.name}", wait_s=0.0, clock=clock)
        try:
            lock.acquire()
        except LockHeld as error:
            for one in held:
                one.release()
            message = f"another worker runs its jobs as {user.name}: {error}"
            raise LockHeld(message, hint="--run-as with other users", **error.data) from None
        held.append(lock)
    return held
