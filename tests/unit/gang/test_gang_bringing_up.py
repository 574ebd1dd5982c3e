"""Waiting for ranks whose ends are told in different ways."""

from __future__ import annotations

import os
import signal
import time
from typing import cast

import pytest

from stoker.core.errors import ProcessLost, RankFailed
from stoker.gang import rank_processes
from stoker.gang.rank_processes import GangTimeouts, RankProcesses, is_ready, wait_for
from stoker.gang.starters import RankProcess
from stoker.host.identity import ProcessExit

KILLED = ProcessExit(status=None, signal=signal.SIGKILL, max_rss_bytes=0, cpu_s=0.0)


class Process:
    """A rank that can be watched, or one that ended too soon for that and is told of a moment later."""

    identity = None

    def __init__(self, *, is_watched: bool) -> None:
        self._pipe = os.pipe() if is_watched else ()
        self._asked = 0

    def fd(self) -> int | None:
        return self._pipe[0] if self._pipe else None

    def exit(self) -> ProcessExit | None:
        self._asked += 1
        return KILLED if not self._pipe and self._asked > 3 else None

    def close(self) -> None:
        for fd in self._pipe:
            os.close(fd)
        self._pipe = ()


class Starter:
    def __init__(self, *, loss: ProcessLost | None = None) -> None:
        self.loss = loss
        self._count = 0

    def start(self, order: object) -> RankProcess:
        self._count += 1
        return cast("RankProcess", Process(is_watched=self._count == 1))

    def signal(self, processes: object, number: object) -> None: ...


def fail(starter: Starter) -> None:
    with RankProcesses(starter, ["device 0", "device 1"]) as ranks:
        for _ in range(2):
            ranks.start("nothing", {}, {})
        wait_for(ranks, is_ready, GangTimeouts(total_s=20))


@pytest.mark.timing
def test_the_end_of_a_rank_that_nobody_could_watch_is_noticed_soon(monkeypatch):
    # Whoever is only looked at now and then would be noticed after this long.
    monkeypatch.setattr(rank_processes, "_LOOK_ANYWAY_S", 15.0)
    began_s = time.monotonic()
    with pytest.raises(RankFailed, match=r"rank 1 \(device 1\) failed in FORKED .*signal 9"):
        fail(Starter())
    assert time.monotonic() - began_s < 10


def test_when_what_all_ranks_come_from_is_gone_that_is_the_error_and_no_rank_is_named():
    with pytest.raises(ProcessLost, match="the zygote is gone"):
        fail(Starter(loss=ProcessLost("the zygote is gone")))
