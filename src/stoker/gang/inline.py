"""A gang of one rank in this very process: no fork, no other process, and a debugger that sees everything.

For tests and for looking into things. Nobody can be ended here, so no deadline is kept.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from stoker.gang import inside
from stoker.gang.frames import HEADER, Kind
from stoker.gang.judging import Failed, Limits, Look, judge
from stoker.gang.page import Page
from stoker.gang.pages import Pages
from stoker.gang.plans import STORE, GangPlan, memory_of_all, rank_plans
from stoker.gang.publishing import Publisher
from stoker.gang.rank import Rank, own_frames
from stoker.gang.staging import Staging
from stoker.gang.telling import error_of


class Inline:
    """The one rank. Its mailbox is read as any other's."""

    def __init__(self, plan: GangPlan) -> None:
        self._plan = plan
        self._staging = Staging(plan.configs)
        self._pages = Pages.make(1)
        self._rank: Rank | None = None
        self._wake_fds = list(os.pipe())
        os.set_blocking(self._wake_fds[1], False)
        self._publisher = Publisher(
            self._pages.fd(0), self._wake_fds[1], rank=0, nranks=1, device_id=plan.configs[0].device_id
        )
        self._started_ns = 0

    def bring_up(self, started_ns: int) -> list[Look]:
        """Go through all phases. Raises `RankFailed` from whatever was raised."""
        self._started_ns = started_ns
        (plan,) = rank_plans(self._plan, [self._staging.orders(0)], started_ns)
        with memory_of_all([plan]) as common:
            try:
                # Its store is in its memory: one in a file would still be there when that is closed.
                fds = {name: fd for name, fd in common.items() if name != STORE}
                self._rank = Rank(plan, self._publisher, {**fds, **self._staging.fds(0)})
                self._rank.bring_up()
            except Exception as error:
                raise self._told(error) from error
        return [self._look()]

    def talk(self, message: bytes, timeout_s: float | None) -> list[bytes]:
        """Do what a message asks for; give the answer's content."""
        kind, _ = HEADER.unpack_from(message)
        self._started_ns = time.monotonic_ns()
        try:
            if self._rank is not None and kind == Kind.CALL:
                return [self._rank.call(message[HEADER.size :])]
            if self._rank is not None:
                self._rank.stage_out()
        except Exception as error:
            raise self._told(error) from error
        return [b""]

    def outputs(self) -> list[dict[str, bytes]]:
        return self._staging.read_all()

    def close(self) -> None:
        """Let go in order, so that this process may be a rank again."""
        if self._rank is not None:
            self._rank.stage_out()
            self._rank.close()

    def end(self) -> None:
        """Leave the group, and let go of everything."""
        from stoker.gang.backend import joining  # noqa: PLC0415 - torch, which this process has already

        inside.become(None)
        with suppress(Exception):
            joining.destroy()
        self.let_go()

    def let_go(self) -> None:
        self._staging.close()
        self._pages.close()
        while self._wake_fds:
            os.close(self._wake_fds.pop())

    def _look(self) -> Look:
        page = self._pages.read(0)
        return Look(rank=0, device=self._plan.names[0], page=page if isinstance(page, Page) else Page())

    def _told(self, error: Exception) -> Exception:
        self._publisher.fail(error, hidden_frames=own_frames(error))
        look = self._look()
        limits = Limits(started_ns=self._started_ns, deadline_ns=None, phases_s={}, collect_s=0.0)
        verdict = judge([look], time.monotonic_ns(), limits)
        if not isinstance(verdict, Failed):
            return error
        return error_of(
            verdict,
            nranks=1,
            traceback=lambda rank: self._pages.traceback(rank, look.page),
            crash=self._pages.crash,
        )
