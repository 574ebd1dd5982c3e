"""The home of a worker with a ticket: a private folder on a disk of this machine, removed when the worker ends.

Locks and databases do not work on a shared file system, and nothing is to remain on a machine that somebody else
uses next. A worker that was killed leaves its folder behind; the next one on the machine removes it, with what that
worker left running.
"""

from __future__ import annotations

import os
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from stoker.core.clock import Clock
from stoker.core.errors import LocalFile, StokerError
from stoker.core.home import HomeFolder
from stoker.core.jsontext import dumps, loads
from stoker.host.durable import read_regular, remove_tree, translate, write_file
from stoker.host.identity import Liveness, ProcessIdentity, is_alive, mine
from stoker.host.resources import NETWORK_FILE_SYSTEMS, file_system_of
from stoker.worker.daemon import end_left_behind
from stoker.worker.worker_options import workers_folder
from stoker.worker.worker_state import Journal

PREFIX = "stoker-home-"
OWNER = "owner.json"
"""In such a home: the identity of its worker's process."""
_USUAL = "/tmp"  # noqa: S108 - a folder with a random name is made in it
_LONGEST_NAME = 40
"""Of the worker's name: the path of a Unix socket below it has at most 107 bytes."""
_LARGEST_BYTES = 4096
_UNMARKED_S = 3600.0
"""A folder that has no owner after so long never gets one: its worker was killed in between."""
_PATIENCE_S = 1.0
"""For attempts that a dead worker left: their checkpoints can't be sent."""
_TRIES = 20
_PAUSE_S = 0.1
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def private_home(name: str, environment: Mapping[str, str], clock: Clock) -> Iterator[str]:
    """Make the home of this process, and remove it at the end; first remove those of dead processes.

    It is below $TMPDIR if that is a folder on a disk of this machine, else below /tmp. Raises `LocalFile` if neither
    can be written.
    """
    parents = tuple(dict.fromkeys(filter(None, (environment.get("TMPDIR", ""), _USUAL))))
    for parent in parents:
        sweep_homes(parent, clock)
    home = _make(name, parents)
    try:
        write_file(os.path.join(home, OWNER), dumps(mine().to_dict()).encode(), mode=0o600)
        yield home
    finally:
        with _undisturbed():
            _remove(home, clock)


def sweep_homes(parent: str, clock: Clock) -> None:
    """Remove the homes of this user's workers that are dead, with what they left running."""
    try:
        names = [name for name in os.listdir(parent) if name.startswith(PREFIX)]
    except OSError:
        return
    for name in names:
        home = os.path.join(parent, name)
        with suppress(OSError, StokerError):
            if _is_left_behind(home, clock):
                _end_attempts(home, clock)
                _remove(home, clock)


def _make(name: str, parents: tuple[str, ...]) -> str:
    trouble: StokerError | None = None
    for parent in parents:
        try:
            kind = file_system_of(parent).type
            if kind not in NETWORK_FILE_SYSTEMS:
                return tempfile.mkdtemp(prefix=f"{PREFIX}{name[:_LONGEST_NAME]}-", dir=os.path.abspath(parent))
            trouble = trouble or LocalFile(f"{parent} is on a network ({kind})", path=parent)
        except OSError as error:
            trouble = trouble or translate(error, parent)
    raise LocalFile(
        f"no folder for this worker's files on a disk of this machine: {trouble}",
        hint="TMPDIR or STOKER_HOME names a folder on a disk of this machine",
    )


def _is_left_behind(home: str, clock: Clock) -> bool:
    found = os.lstat(home)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    try:
        owner = ProcessIdentity.from_dict(loads(read_regular(os.path.join(home, OWNER), _LARGEST_BYTES)))
    except FileNotFoundError:
        return clock.wall_s() - found.st_mtime > _UNMARKED_S
    except (ValueError, AttributeError):
        return False
    return is_alive(owner) is Liveness.GONE


def _end_attempts(home: str, clock: Clock) -> None:
    """Stop the attempts of a dead worker: nobody can take them up again."""
    workers = workers_folder(HomeFolder.STATE.below(home))
    with suppress(FileNotFoundError):
        for name in os.listdir(workers):
            journal = Journal(os.path.join(workers, name))
            left = journal.read()
            for lease in () if left is None else left.leases:
                end_left_behind(journal, lease, runs=HomeFolder.RUNS.below(home), clock=clock, patience_s=_PATIENCE_S)


def _remove(home: str, clock: Clock) -> None:
    """Remove a home, the mark of its owner last: if this is cut off, the next sweep continues it."""
    for left in reversed(range(_TRIES)):
        try:
            for name in os.listdir(home):
                if name != OWNER:
                    remove_tree(os.path.join(home, name))
            remove_tree(home)
            return
        except FileNotFoundError:
            return
        except (OSError, StokerError):
            # A process that is just ending may still have written a file.
            if not left:
                return
        clock.sleep(_PAUSE_S)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ignore requests to end: this is the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
