"""Events and speed of downloads, and a thread pool that works through a list of downloads.

An error of one file may concern the others too: a full disk all of them, a lost network all of one server. Those are
not tried; each still has an outcome.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from stoker.core.errors import NetworkFailed, StokerError
from stoker.core.events import Event, Kinds
from stoker.core.text import format_size
from stoker.host.http.exchange import shown
from stoker.transfer.download.types import DownloadOutcome, DownloadRequest, DownloadTimeouts, FetchedFile

# The speed of one connection: too slow or not, the estimated time left, when to report progress.
#
# A silent connection is not detected here: the transport times out.

_SAMPLE_EVERY_S = 1.0
_RATE_OVER_S = 10.0
_TELL_EVERY_S = 0.25


class ConnectionSpeed:
    """The speed of one connection."""

    def __init__(self, now_s: float, patience: DownloadTimeouts) -> None:
        self._patience = patience
        self._came_bytes = 0
        self._now_s = now_s
        self._samples: deque[tuple[float, int]] = deque([(now_s, 0)])

    def got(self, size_bytes: int, now_s: float) -> None:
        """Record received bytes."""
        self._came_bytes += size_bytes
        self._now_s = now_s
        if now_s - self._samples[-1][0] >= _SAMPLE_EVERY_S:
            self._samples.append((now_s, self._came_bytes))
            # One sample from before the window stays: the window is measured from it.
            while len(self._samples) > 1 and now_s - self._samples[1][0] >= self._patience.slow_s:
                self._samples.popleft()

    @property
    def rate_bytes_per_s(self) -> float | None:
        """Rate over the last seconds; None without enough samples."""
        start_s, start_bytes = next(
            (sample for sample in self._samples if self._now_s - sample[0] <= _RATE_OVER_S), self._samples[-1]
        )
        passed_s = self._now_s - start_s
        return (self._came_bytes - start_bytes) / passed_s if passed_s > 0 else None

    def eta_s(self, left_bytes: int | None) -> float | None:
        """The estimated time left at this rate."""
        rate = self.rate_bytes_per_s
        return None if left_bytes is None or not rate else left_bytes / rate

    @property
    def complaint(self) -> str:
        """Return why the connection is too slow; empty if it is not."""
        start_s, start_bytes = self._samples[0]
        passed_s = self._now_s - start_s
        limit = self._patience.slow_bytes_per_s
        if passed_s < self._patience.slow_s or self._came_bytes - start_bytes >= limit * passed_s:
            return ""
        rate = format_size(int((self._came_bytes - start_bytes) / passed_s))
        return f"too slow: {rate}/s over {passed_s:.0f}s, less than {format_size(limit)}/s"


class ProgressThrottle:
    """Limits progress events to four per second; the first is immediate."""

    def __init__(self) -> None:
        self._next_s = float("-inf")

    def is_due(self, now_s: float) -> bool:
        """Return True if an event is due; if so, start the next interval."""
        if now_s < self._next_s:
            return False
        self._next_s = now_s + _TELL_EVERY_S
        return True


# The events of downloads: flat, each with `phase` and `file`. Unknown numbers are null.


def retry_of(file: str, *, wait_s: float, msg: str, reason: str, attempt: int) -> Event:
    """Return the event of a retry; `file` may also name a request to a server."""
    fields = {"phase": "retry", "file": file, "wait_secs": round(wait_s, 3), "msg": msg}
    return Event(Kinds.DOWNLOAD_RETRY, {**fields, "reason": reason, "attempt": attempt})


def reason_of(error: StokerError) -> str:
    """Return the reason of a failed attempt as one word, for programs."""
    return str(error.data.get("reason") or error.data.get("status") or error.code)


def failure_of(file: str, error: StokerError) -> Event:
    """Return the event of a failed download."""
    return Event(Kinds.DOWNLOAD_FAILED, {"phase": "failed", "file": file, **error.to_dict()})


def frozen_of(file: str, *, path: str, files: int, size_bytes: int, commit: str) -> Event:
    """Return the event of a lock list written to a path; `file` is the repository."""
    fields = {"phase": "frozen", "file": file, "path": path, "files": files, "bytes": size_bytes, "commit": commit}
    return Event(Kinds.DOWNLOAD_FROZEN, fields)


class DownloadEvents:
    """Emits the events of one file: exactly one `start` before the first byte of a body, exactly one `done`."""

    def __init__(self, say: Callable[[Event], None], wanted: DownloadRequest, name: str) -> None:
        self._say = say
        self._wanted = wanted
        self._file = wanted.label or name
        self._rhythm = ProgressThrottle()
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

    def progress(self, downloaded: int, total: int | None, pace: ConnectionSpeed, hashed: int, now_s: float) -> None:
        """Report progress, at most four times a second."""
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

    def done(self, fetched: FetchedFile) -> None:
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


# The number of downloaded bytes, from the events of any number of downloads: each byte counts once.

_HOW_FAR = {Kinds.DOWNLOAD_START: "start", Kinds.DOWNLOAD_PROGRESS: "downloaded", Kinds.DOWNLOAD_DONE: "bytes"}


def counting(heed: Callable[[int], None]) -> Callable[[Event], None]:
    """Return an event handler that calls `heed` with the number of new bytes.

    Bytes from an earlier run do not count; a file that was found complete counts in full.
    """
    at: dict[object, int] = {}

    def hear(event: Event) -> None:
        file, far = event.fields.get("file"), event.fields.get(_HOW_FAR.get(event.kind, ""))
        if not isinstance(far, int):
            return
        before = at.get(file, 0)
        at[file] = far if event.kind == Kinds.DOWNLOAD_START else max(before, far)
        if event.kind != Kinds.DOWNLOAD_START and far > before:
            heed(far - before)

    return hear


Item = TypeVar("Item")

_MOST_CUT_OFF = 3
"""After so many consecutive files (or as many as there are threads) failed by the network, the network is unreachable.
"""


def _one_server(_item: object, /) -> str:
    return ""


class DownloadPool(Generic[Item]):
    """A thread pool that works through a list. An error that concerns all files ends it early."""

    def __init__(
        self,
        waiting: Sequence[Item],
        work: Callable[[Item], list[DownloadOutcome]],
        *,
        labels: Callable[[Item], Sequence[str]],
        ends_all: tuple[type[StokerError], ...],
        server: Callable[[Item], str] = _one_server,
    ) -> None:
        """`labels` names the files of an item; an error of the types `ends_all` fails all other files too.

        `server` returns the server of an item: an unreachable network counts for that server only.
        """
        self._waiting = deque(waiting)
        self._work = work
        self._labels = labels
        self._ends_all = ends_all
        self._server = server
        self._lock = threading.Lock()
        self._outcomes: list[DownloadOutcome] = []
        self._cause: StokerError | None = None
        self._lost: dict[str, StokerError] = {}
        """By server: the error that shows that it is unreachable."""
        self._cut_off: Counter[str] = Counter()
        self._most_cut_off = _MOST_CUT_OFF
        self._bug: BaseException | None = None

    def work(self, workers: int) -> list[DownloadOutcome]:
        """Work through the list with at most `workers` threads; return all outcomes, unordered."""
        count = max(1, min(workers, len(self._waiting)))
        self._most_cut_off = max(count, _MOST_CUT_OFF)
        if count == 1:
            self._run()
        else:
            threads = [threading.Thread(target=self._run, name=f"fetch-{number}") for number in range(count)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if self._bug is not None:
            raise self._bug
        return self._outcomes

    def _run(self) -> None:
        try:
            while (item := self._next()) is not None:
                server = self._server(item[0])
                cause = self._cause or self._lost.get(server)
                if cause is None:
                    self._note(server, self._work(item[0]))
                else:
                    self._note(server, [DownloadOutcome(label=label, error=cause) for label in self._labels(item[0])])
        except BaseException as error:  # noqa: BLE001 - raised again in `work`
            self._bug = self._bug or error

    def _next(self) -> tuple[Item] | None:
        with self._lock:
            return (self._waiting.popleft(),) if self._waiting and self._bug is None else None

    def _note(self, server: str, outcomes: Sequence[DownloadOutcome]) -> None:
        with self._lock:
            self._outcomes += outcomes
            for outcome in outcomes:
                if outcome.error is None:
                    self._cut_off[server] = 0
                elif isinstance(outcome.error, NetworkFailed):
                    self._cut_off[server] += 1
                    # Each of the others would wait for the timeout again.
                    if outcome.error.data.get("timed_out") or self._cut_off[server] >= self._most_cut_off:
                        self._lost.setdefault(server, outcome.error)
                if isinstance(outcome.error, self._ends_all):
                    self._cause = self._cause or outcome.error
