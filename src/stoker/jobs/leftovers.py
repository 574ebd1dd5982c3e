"""Staging folders that killed processes left behind. Every run looks, so this imports next to nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from stoker.core.digests import Digest
from stoker.core.errors import StokerError
from stoker.engine.key_leases import KeyLeases
from stoker.host.durable import remove_tree
from stoker.host.identity import read_row
from stoker.store.local_store import LocalStore
from stoker.store.places import names_in


def clear_stale_staging(store: LocalStore, leases: KeyLeases) -> None:
    """Remove what killed runs had half written. Costs one look at an empty folder when there is nothing."""
    if names_in(store.places.staging):
        for path in stale_staging(store, leases.held()):
            with suppress(StokerError):
                remove_tree(path)


def stale_staging(store: LocalStore, held: list[Digest]) -> Iterator[str]:
    """Return the staging folders `.PID.….KEY` whose process is gone.

    A process in another container can't be seen, but it renews its lease on the key.
    """
    busy = {key[:12] for key in held}
    for name in names_in(store.places.staging):
        pid, _, rest = name.removeprefix(".").partition(".")
        row = read_row(int(pid)) if pid.isdigit() else None
        if pid.isdigit() and (row is None or row.is_gone) and rest.rpartition(".")[2] not in busy:
            yield os.path.join(store.places.staging, name)
