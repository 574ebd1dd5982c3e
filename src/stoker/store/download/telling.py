"""The events of downloads, flat, each with its `phase` and `file`: made here only. Unknown numbers are null."""

from __future__ import annotations

from collections.abc import Callable

from stoker.host.http.addresses import shown
from stoker.model.errors import StokerError
from stoker.model.events import Event, Kinds
from stoker.store.download.pace import Pace, Rhythm
from stoker.store.download.wanted import Fetched, Wanted


def retry_of(file: str, *, wait_s: float, msg: str, reason: str, attempt: int) -> Event:
    """Give the news that something is tried once more; `file` may be a question to a server as well."""
    fields = {"phase": "retry", "file": file, "wait_secs": round(wait_s, 3), "msg": msg}
    return Event(Kinds.DOWNLOAD_RETRY, {**fields, "reason": reason, "attempt": attempt})


def reason_of(error: StokerError) -> str:
    """Return why an attempt failed, in one word for programs."""
    return str(error.data.get("reason") or error.data.get("status") or error.code)


def failure_of(file: str, error: StokerError) -> Event:
    """Give the news that a file will not come."""
    return Event(Kinds.DOWNLOAD_FAILED, {"phase": "failed", "file": file, **error.to_dict()})


def frozen_of(file: str, *, path: str, files: int, size_bytes: int, commit: str) -> Event:
    """Give the news that a lock list was written at a path; `file` is the repository."""
    fields = {"phase": "frozen", "file": file, "path": path, "files": files, "bytes": size_bytes, "commit": commit}
    return Event(Kinds.DOWNLOAD_FROZEN, fields)


class Teller:
    """Tells what happens to one file. Exactly one `start` before the first byte of a body, exactly one `done`."""

    def __init__(self, say: Callable[[Event], None], wanted: Wanted, name: str) -> None:
        self._say = say
        self._wanted = wanted
        self._file = wanted.label or name
        self._rhythm = Rhythm()
        self._has_started = False

    def start(self, offset: int, total: int | None) -> None:
        if self._has_started:
            return
        self._has_started = True
        self._tell(
            Kinds.DOWNLOAD_START,
            "start",
            url=shown(self._wanted.url),
            resume=offset > 0,
            start=offset,
            total=total,
            sha256=self._wanted.sha256,
        )

    def progress(self, downloaded: int, total: int | None, pace: Pace, hashed: int, now_s: float) -> None:
        """Tell how far it is, at most four times a second."""
        if not self._rhythm.is_due(now_s):
            return
        rate, eta_s = pace.rate_bytes_per_s, pace.eta_s(None if total is None else total - downloaded)
        self._tell(
            Kinds.DOWNLOAD_PROGRESS,
            "progress",
            downloaded=downloaded,
            total=total,
            rate_bytes_per_s=None if rate is None else round(rate),
            eta_s=None if eta_s is None else round(eta_s, 1),
            hashed=hashed,
        )

    def retry(self, *, wait_s: float, msg: str, reason: str, attempt: int) -> None:
        self._say(retry_of(self._file, wait_s=wait_s, msg=msg, reason=reason, attempt=attempt))

    def waiting(self, path: str, msg: str) -> None:
        self._tell(Kinds.DOWNLOAD_WAITING, "waiting", path=path, msg=msg)

    def done(self, fetched: Fetched) -> None:
        self._tell(
            Kinds.DOWNLOAD_DONE,
            "done",
            bytes=fetched.size_bytes,
            ms=round(fetched.seconds * 1000),
            sha256=fetched.sha256,
            bytes_from_network=fetched.bytes_from_network,
            bytes_resumed=fetched.bytes_resumed,
            path=fetched.path,
            status=fetched.status.value,
            commit=fetched.commit,
        )

    def _tell(self, kind: str, phase: str, **fields: object) -> None:
        self._say(Event(kind, {"phase": phase, "file": self._file, **fields}))
