"""Where the event loop asks the queue: commands go in one by one, answers come back a group at a time.

The queue answers in its own writer thread, once per command and after the group's commit, and tells of each commit.
Waking the loop is what costs, so all that a commit brings shares one wake-up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Protocol, TypeAlias

from stoker.coordinator.queue.commands import Answer, Command, Write
from stoker.coordinator.service.figures import SECONDS, SIZES, Histogram
from stoker.model.errors import StokerError
from stoker.wire.leasing import Granted

Then: TypeAlias = Callable[[Answer | StokerError], None]


class Posting(Protocol):
    """The queue, as far as it is needed here."""

    def post(self, command: Command, then: Then) -> None:
        """Take a command; `then` is called with its answer or its error, in another thread."""


class OnChange(Protocol):
    """Hears in the loop of commits since it last heard of some: the newest event, and whether rows were read again."""

    def __call__(self, newest: int, *, is_reread: bool) -> None: ...


class Counter:
    """One event loop's way to the queue, and what it has counted there."""

    def __init__(self, queue: Posting, loop: asyncio.AbstractEventLoop, *, on_change: OnChange) -> None:
        self._queue = queue
        self._loop = loop
        self._on_change = on_change
        self._answers: deque[tuple[_Asked, Answer | StokerError]] = deque()
        self._changes: deque[tuple[int, bool]] = deque()
        self._is_awaited = False
        self.asked: dict[str, int] = {}
        """Commands by sort."""
        self.refused: dict[str, int] = {}
        """Refusals by code."""
        self.grants = 0
        self.seconds = Histogram(SECONDS)
        self.group_sizes = Histogram(SIZES)

    def post(self, command: Command, then: Then) -> None:
        """Ask, and have the answer or the refusal brought to `then`, in the loop. It must not raise."""
        asked = _Asked(command, then, self._loop.time())
        self._queue.post(command, lambda answer: self._bring(asked, answer))

    async def ask(self, command: Command) -> Any:
        """Give the queue's answer, or raise its refusal."""
        future = self._loop.create_future()
        self.post(command, _settling(future))
        return await future

    async def ask_through(self, threads: Executor, command: Command) -> Any:
        """The same for a command that takes a while to be taken in."""
        future = self._loop.create_future()
        asked = _Asked(command, _settling(future), self._loop.time())
        await self._loop.run_in_executor(threads, self._queue.post, command, lambda answer: self._bring(asked, answer))
        return await future

    def bring_change(self, newest: int, is_reread: bool) -> None:  # noqa: FBT001 - as the queue calls it
        """Take word of a commit, in the writer's thread."""
        self._changes.append((newest, is_reread))
        self._wake()

    def _bring(self, asked: _Asked, answer: Answer | StokerError) -> None:
        self._answers.append((asked, answer))
        self._wake()

    def _wake(self) -> None:
        # Set before the loop is called and cleared before it takes: what comes while it takes wakes it again.
        if not self._is_awaited:
            self._is_awaited = True
            try:
                self._loop.call_soon_threadsafe(self._hand_out)
            except RuntimeError:
                # The loop has ended, and with it whoever asked.
                self._answers.clear()

    def _hand_out(self) -> None:
        self._is_awaited = False
        answers, now_s = self._answers, self._loop.time()
        count = 0
        while answers:
            asked, answer = answers.popleft()
            count += 1
            self._note(asked, answer, now_s)
            asked.then(answer)
        if count:
            self.group_sizes.add(count)
        if self._changes:
            self._hand_out_changes()

    def _hand_out_changes(self) -> None:
        changes, newest, is_reread = self._changes, 0, False
        while changes:
            newest, reread = changes.popleft()
            is_reread = is_reread or reread
        self._on_change(newest, is_reread=is_reread)

    def _note(self, asked: _Asked, answer: Answer | StokerError, now_s: float) -> None:
        self.asked[asked.sort] = self.asked.get(asked.sort, 0) + 1
        self.seconds.add(now_s - asked.at_s)
        if isinstance(answer, Granted):
            self.grants += len(answer.grants)
        elif isinstance(answer, StokerError):
            self.refused[answer.code] = self.refused.get(answer.code, 0) + 1


class _Asked:
    __slots__ = ("at_s", "sort", "then")

    def __init__(self, command: Command, then: Then, at_s: float) -> None:
        self.then = then
        self.at_s = at_s
        self.sort = type(command.said if isinstance(command, Write) else command).__name__.lower()


def _settling(future: asyncio.Future[Any]) -> Then:
    def settle(answer: Answer | StokerError) -> None:
        if future.done():
            return
        if isinstance(answer, StokerError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    return settle
