"""Brings events to hooks, at least once and in order, from threads of its own: nobody who works waits for them.

How far each has come is durable, written behind what was delivered: after a crash some messages come twice, none is
missing. One that can't be reached is tried again, after ever longer pauses; after a day it is closed, with an event.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType

from stoker.coordinator.alongside import Alongside
from stoker.coordinator.notifying.addresses import may_be_told
from stoker.coordinator.notifying.choosing import Notice, is_wanted, notice_of, signed
from stoker.coordinator.notifying.hook_reading import have_ended, read_piece
from stoker.coordinator.queue.health_commands import CloseHook, MoveHook
from stoker.coordinator.queue.queue import Queue
from stoker.coordinator.queue.reading.health import HookRow
from stoker.host.http.outward import OutwardTransport
from stoker.host.http.settings import HttpSettings
from stoker.model.clock import Clock
from stoker.model.errors import StokerError
from stoker.model.frozen import changed
from stoker.model.retry import pause_s

CONNECT_S = 5.0
ANSWER_S = 10.0
FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 3600.0
GIVE_UP_S = 24 * 3600.0
MOST_AT_ONCE = 50
"""Messages to one hook before the others have their turn."""
ROUND_S = 1.0
_THREADS = 4
_IDLE_S = 30.0
_WRITE_AFTER = 5000
"""So many events that were not for a hook may be looked at again after a crash."""


class Notifier(Alongside):
    """Delivers while a with-block lasts. Tell it of changes: `queue.on_change(notifier.changed)`."""

    def __init__(
        self,
        queue: Queue,
        settings: HttpSettings,
        *,
        clock: Clock,
        chance: Callable[[], float],
        round_s: float = ROUND_S,
    ) -> None:
        super().__init__("notifier")
        self._queue = queue
        self._database = queue.reader.database
        self._clock = clock
        self._chance = chance
        self._round_s = round_s
        settings = changed(settings, connect_s=CONNECT_S, head_s=ANSWER_S, read_s=ANSWER_S)
        self._outside = OutwardTransport(settings, partial(may_be_told, is_inner=False))
        self._anywhere = OutwardTransport(settings, partial(may_be_told, is_inner=True))
        self._reached: dict[int, int] = {}
        """Hook → the last event that was looked at for it."""
        self._round = threading.Lock()
        self._news = threading.Event()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="stoker-hooks")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._threads.shutdown(wait=True, cancel_futures=True)
        for transport in (self._outside, self._anywhere):
            transport.close()

    def changed(self, _event_id: int, _is_reread: bool) -> None:  # noqa: FBT001 - as the queue tells it
        """Take note that something happened."""
        self._news.set()

    def send(self, hook: HookRow, notice: Notice) -> str:
        """Send one message; give what went wrong, or nothing."""
        transport = self._anywhere if hook.is_inner else self._outside
        try:
            status = transport.post(hook.url, notice.body, signed(notice, hook.secret, self._clock.wall_s()))
        except StokerError as error:
            return error.message
        return "" if 200 <= status < 300 else f"it answered {status}"

    def deliver_all(self) -> bool:
        """Give every hook what it has not had; say whether more waits."""
        with self._round:
            now_s = self._clock.wall_s()
            hooks = [hook for hook in self._queue.reader.hooks(is_open=True) if hook.not_before_s <= now_s]
            return any(list(self._threads.map(self._deliver_one, hooks)))

    def _deliver_one(self, hook: HookRow) -> bool:
        """Give one hook what it has not had, up to a number; say whether there is more."""
        try:
            return self._deliver(hook)
        except StokerError:
            # The database is in trouble: the next round finds what is left.
            return False

    def _deliver(self, hook: HookRow) -> bool:
        reached = max(hook.cursor, self._reached.get(hook.id, 0))
        piece = read_piece(self._database, reached)
        jobs, sent, trouble = frozenset(hook.jobs), 0, ""
        for seq, event in piece.events:
            if self._over.is_set() or sent >= MOST_AT_ONCE:
                break
            if not (jobs and seq not in jobs) and is_wanted(event, hook.words):
                trouble = self.send(hook, notice_of(event))
                if trouble:
                    break
                sent += 1
            reached = int(event["seq"])
        if self._over.is_set() and trouble:
            # We pulled the line ourselves.
            return False
        self._reached[hook.id] = reached
        is_through = piece.is_last and reached == piece.until
        if trouble:
            self._note_failure(hook, reached, trouble)
        elif sent or hook.failures or reached - hook.cursor >= _WRITE_AFTER:
            self._queue.ask(MoveHook(id=hook.id, cursor=reached))
        if jobs and is_through and not trouble and have_ended(self._database, hook.jobs):
            self._queue.ask(CloseHook(id=hook.id, why="all its jobs have ended"))
        return not trouble and not is_through

    def _note_failure(self, hook: HookRow, reached: int, trouble: str) -> None:
        now_s = self._clock.wall_s()
        since_s = hook.failing_since_s if hook.failing_since_s is not None else now_s
        if now_s - since_s >= GIVE_UP_S:
            self._queue.ask(CloseHook(id=hook.id, why=f"it could not be told anything for a day: {trouble}"))
            return
        wait_s = pause_s(hook.failures, self._chance(), first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        self._queue.ask(
            MoveHook(
                id=hook.id,
                cursor=reached,
                failures=hook.failures + 1,
                failing_since_s=since_s,
                not_before_s=now_s + wait_s,
                last_error=trouble,
            )
        )

    def _let_go(self) -> None:
        self._news.set()
        for transport in (self._outside, self._anywhere):
            transport.abort()

    def _run(self) -> None:
        is_more = True
        while not self._over.is_set():
            if not is_more:
                # Pauses of hooks end without news.
                self._news.wait(min(_IDLE_S, max(self._round_s, FIRST_PAUSE_S)))
            self._news.clear()
            # A database in trouble is asked again in a while, and not at once.
            is_more = False
            with self._one_try():
                is_more = self.deliver_all()
            if self._over.wait(self._round_s if not is_more else 0.0):
                return
