"""A few threads that work through a list of downloads, until they are done or there is no point in going on.

What keeps one file away may keep the next ones away, too: a full disk all of them, a network that is gone all that
come over it. Those are not tried any more; each has an outcome all the same.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from stoker.model.errors import NetworkFailed, StokerError
from stoker.store.download.outcome import Outcome

Item = TypeVar("Item")

_MOST_CUT_OFF = 3
"""So many files in a row (or as many as there are threads) that the network failed: it is gone."""


def _one_server(_item: object, /) -> str:
    return ""


class Crew(Generic[Item]):
    """A few threads that work through a list. What concerns all files ends the work early."""

    def __init__(
        self,
        waiting: Sequence[Item],
        work: Callable[[Item], list[Outcome]],
        *,
        labels: Callable[[Item], Sequence[str]],
        ends_all: tuple[type[StokerError], ...],
        server: Callable[[Item], str] = _one_server,
    ) -> None:
        """`labels` names the files of an item; an error of `ends_all` keeps every other file away as well.

        `server` says what an item is fetched from: a network that is gone is gone for that one only.
        """
        self._waiting = deque(waiting)
        self._work = work
        self._labels = labels
        self._ends_all = ends_all
        self._server = server
        self._lock = threading.Lock()
        self._outcomes: list[Outcome] = []
        self._cause: StokerError | None = None
        self._lost: dict[str, StokerError] = {}
        """By server, why there is no way to it."""
        self._cut_off: Counter[str] = Counter()
        self._most_cut_off = _MOST_CUT_OFF
        self._bug: BaseException | None = None

    def work(self, workers: int) -> list[Outcome]:
        """Work through the list with so many threads at most; give all outcomes, in no order."""
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
                    self._note(server, [Outcome(label=label, error=cause) for label in self._labels(item[0])])
        except BaseException as error:  # noqa: BLE001 - raised again where somebody can see it
            self._bug = self._bug or error

    def _next(self) -> tuple[Item] | None:
        with self._lock:
            return (self._waiting.popleft(),) if self._waiting and self._bug is None else None

    def _note(self, server: str, outcomes: Sequence[Outcome]) -> None:
        with self._lock:
            self._outcomes += outcomes
            for outcome in outcomes:
                if outcome.error is None:
                    self._cut_off[server] = 0
                elif isinstance(outcome.error, NetworkFailed):
                    self._cut_off[server] += 1
                    # Each of the others would wait as long once more.
                    if outcome.error.data.get("timed_out") or self._cut_off[server] >= self._most_cut_off:
                        self._lost.setdefault(server, outcome.error)
                if isinstance(outcome.error, self._ends_all):
                    self._cause = self._cause or outcome.error
