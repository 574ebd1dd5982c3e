"""What was mirrored in a time that a restore undid: the numbers of its attempts are given out again, to others.

Bytes of the one must never stand before bytes of the other, so they go before anybody is given a number again.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from stoker.coordinator.keeping.attempts import AttemptFiles
from stoker.host.durable import read_regular, write_file

_NAME = "generation"
_LARGEST_BYTES = 100


def forget_lost_past(
    files: AttemptFiles, folder: str, generation: int, known_attempts: Callable[[str], int]
) -> tuple[tuple[str, int], ...]:
    """Remove mirrors of attempts that the queue does not know, once after its generation rose; gives what went.

    `known_attempts` says how many attempts a job has had, none of one that the queue does not know.
    """
    path = os.path.join(folder, _NAME)
    before = _read(path)
    if before == generation:
        return ()
    lost: list[tuple[str, int]] = []
    if before is not None:
        for job in tuple(files.jobs()):
            known = known_attempts(job)
            for attempt in files.attempts(job):
                if attempt > known:
                    files.remove(job, attempt)
                    lost.append((job, attempt))
    write_file(path, f"{generation}\n".encode(), mode=0o600)
    return tuple(lost)


def _read(path: str) -> int | None:
    try:
        return int(read_regular(path, _LARGEST_BYTES))
    except (OSError, ValueError):
        return None
