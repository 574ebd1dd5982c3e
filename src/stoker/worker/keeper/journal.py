"""What a keeper holds, written down for the one after it: leases, the children under them, and under which name.

    state/worker/NAME/
        lock            held by the worker of this name
        journal.json    its incarnation and what it holds, written before a child gets its assignment
        leases/RUN      until when each attempt may run: the child reads it
        said/…          what children write to their standard error, until it lies in their attempt's folder
        spool/…         archives on their way

A successor finds a child by number, start and boot, never by the number alone. Nothing here has to survive a power cut:
no process does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from stoker.host.durable import read_regular, remove_tree, translated
from stoker.host.identity import ProcessIdentity, mine
from stoker.model.frozen import frozen
from stoker.model.json_text import dumps, loads
from stoker.wire.leasing import Grant
from stoker.worker.attempt.assignment import LeaseFile
from stoker.worker.keeper.state import Lease, Phase

_LARGEST_BYTES = 1 << 28


@frozen
class Written:
    """One lease as an earlier keeper left it."""

    grant: Grant
    run: str
    child: ProcessIdentity
    ends_s: float


@frozen
class Predecessor:
    """What the keeper before this one held."""

    incarnation: str
    coordinator: str
    leases: tuple[Written, ...]


def workers_folder(state: str) -> str:
    """Give where the workers of a home keep their files, each in a folder of its name."""
    return os.path.join(state, "worker")


class Journal:
    """The files of one worker."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.lock_path = os.path.join(folder, "lock")
        self.said_folder = os.path.join(folder, "said")
        self.spool_folder = os.path.join(folder, "spool")
        self._path = os.path.join(folder, "journal.json")

    def open(self) -> None:
        """Make the folders, and clear what an earlier keeper was packing or hearing when it was killed."""
        remove_tree(self.spool_folder)
        # A child of its may still write there: into a file that goes with it, and that nobody would find.
        remove_tree(self.said_folder)
        with translated(self.folder):
            for folder in (self.folder, self.said_folder, os.path.join(self.folder, "leases")):
                os.makedirs(folder, mode=0o700, exist_ok=True)

    def lease_file(self, run: str) -> LeaseFile:
        """Give the file that says until when an attempt may run."""
        return LeaseFile(os.path.join(self.folder, "leases", run))

    def write(self, *, incarnation: str, coordinator: str, leases: Iterable[Lease]) -> None:
        """Write down what is held now. Readers see what was written before, or this."""
        held = [
            {
                "grant": lease.grant.model_dump(mode="json"),
                "run": lease.run,
                "child": lease.child.to_dict(),
                "ends_s": lease.ends_s,
            }
            for lease in leases
            if lease.child is not None and (lease.phase is not Phase.SENDING or lease.end is not None)
        ]
        body = {
            "v": 1,
            "incarnation": incarnation,
            "coordinator": coordinator,
            "boot_id": mine().boot_id,
            "leases": held,
        }
        with translated(self._path):
            fresh_path = f"{self._path}.new"
            with open(fresh_path, "wb") as file:
                file.write(dumps(body).encode())
            os.replace(fresh_path, self._path)

    def read(self) -> Predecessor | None:
        """Give what an earlier keeper of this boot held; nothing if there is nothing to be read."""
        try:
            raw = loads(read_regular(self._path, _LARGEST_BYTES))
            if raw["boot_id"] != mine().boot_id:
                return None
            return Predecessor(
                incarnation=str(raw["incarnation"]),
                coordinator=str(raw["coordinator"]),
                leases=tuple(_read_lease(one) for one in raw["leases"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _read_lease(raw: Mapping[str, Any]) -> Written:
    return Written(
        grant=Grant.model_validate(raw["grant"]),
        run=str(raw["run"]),
        child=ProcessIdentity.from_dict(raw["child"]),
        ends_s=float(raw["ends_s"]),
    )
