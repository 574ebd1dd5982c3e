"""An attempt's folder, brought here from where the coordinator mirrors it, so that everything that reads one can.

Files only grow; what is here already is not brought again. The folder is a temporary one and goes when it is closed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable

from stoker.host.durable import translated
from stoker.model.errors import BadAnswer
from stoker.model.printable import one_line
from stoker.model.units import format_size
from stoker.wire.client import FleetClient
from stoker.worker.job_folder import JobFolder

_PIECE_BYTES = 4 * 1024 * 1024
# What an honest coordinator keeps of one attempt, and more.
_MOST_BYTES = 8 << 30
_MOST_FILES = 20_000
_FIRST = "job.json"
_ASK = "ask whoever runs it"


def story_files(path: str) -> bool:
    """Say whether a file tells how the job went: all but logs and metrics."""
    return not path.startswith(("logs/", "metrics/", "code/"))


def log_files(path: str) -> bool:
    """Say whether a file is needed to show what was printed."""
    return not path.startswith(("metrics/", "code/"))


class Mirrored:
    """One attempt of a fleet's job, here."""

    def __init__(self, client: FleetClient, job: str, attempt: int, *, wants: Callable[[str], bool]) -> None:
        self._client = client
        self._job = job
        self.attempt = attempt
        self._wants = wants
        self._top = tempfile.mkdtemp(prefix="stoker-fleet-")
        self.folder = JobFolder(os.path.join(self._top, f"{job[:12]}-{attempt}"))
        self._sizes: dict[str, int] = {}
        self._came_bytes = 0
        self._newest = ""
        self._has_looked = False
        self.is_over = False
        """The attempt has ended and everything of it is here."""
        with translated(self.folder.path):
            os.makedirs(self.folder.log_folder)

    def pull(self, wait_s: float = 0.0) -> bool:
        """Bring what is new, waiting for it if there is nothing; say whether anything came."""
        has_come = False
        if wait_s and self._has_looked and not self.is_over:
            # Whatever grew last is the likeliest to grow next.
            has_come = self._take(self._newest or _FIRST, wait_s=wait_s) > 0
        listed = self._client.files(self._job, attempt=self.attempt)
        self._has_looked = True
        if len(listed.files) > _MOST_FILES:
            raise BadAnswer(f"the coordinator lists {len(listed.files):,} files of one attempt", hint=_ASK)
        for file in listed.files:
            while self._wants(file.path) and self._sizes.get(file.path, 0) < file.size_bytes:
                if not self._take(file.path):
                    break
                has_come = True
        self.is_over = listed.is_over
        return has_come

    def has(self, path: str) -> bool:
        """Say whether anything of a file is here."""
        return path in self._sizes

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self._top, ignore_errors=True)

    def _take(self, path: str, wait_s: float = 0.0) -> int:
        at = self._sizes.get(path, 0)
        piece = self._client.read_file(
            self._job, path, attempt=self.attempt, offset=at, limit=_PIECE_BYTES, wait_s=wait_s
        )
        if piece.data:
            self._came_bytes += len(piece.data)
            if self._came_bytes > _MOST_BYTES:
                raise BadAnswer(f"the coordinator sends more than {format_size(_MOST_BYTES)} of one attempt", hint=_ASK)
            self._append(path, piece.data)
            self._sizes[path] = at + len(piece.data)
            self._newest = path
        return len(piece.data)

    def _append(self, path: str, data: bytes) -> None:
        parts = path.split("/")
        if path.startswith("/") or any(part in ("", ".", "..") or "\0" in part for part in parts):
            # A coordinator has no business anywhere else on this computer.
            raise BadAnswer(f"the coordinator lists a file that leads elsewhere: {one_line(path, 200)!r}")
        target = os.path.join(self.folder.path, *parts)
        with translated(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "ab") as file:
                file.write(data)
