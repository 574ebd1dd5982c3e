"""Environments that a prune offers and takes: by last use, none that is in use, none that somebody makes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.host.identity import mine
from stoker.host.locks import FileLock
from stoker.store.environment_cache import (
    EnvironmentCache,
    EnvironmentPrunePlan,
    EnvironmentReady,
    drop,
    offer,
)

OLD, USED, NEW, HALF = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
DAY_S = 86_400.0


class Machine:
    """Three environments, each unused for a day longer than the next, and one that nobody finished."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.shelf = EnvironmentCache(str(folder), clock=self.clock)
        for key in (OLD, USED, NEW):
            os.makedirs(self.shelf.venv(key))
            packages = {"torch": "2.5.1"}
            ready = EnvironmentReady(
                digest=key, key=key, interpreter=sys.executable, version="3.11.2", packages=packages, size_bytes=100
            )
            self.shelf.keep(ready)
            self.shelf.use(key)
            self.clock.advance(DAY_S)
        os.makedirs(self.shelf.place(HALF))
        Path(self.shelf.place(HALF), "half").write_bytes(b"12345")

    def offer(self, *, max_bytes: int | None = None, older_than_s: float | None = None) -> EnvironmentPrunePlan:
        return offer(self.shelf, now_s=self.clock.wall_s(), max_bytes=max_bytes, older_than_s=older_than_s)

    @property
    def kept(self) -> set[str]:
        return {one.key for one in self.shelf.all_kept()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_those_unused_for_longer_are_offered_with_the_reason_and_nothing_goes_yet(machine: Machine) -> None:
    offered = machine.offer(older_than_s=1.5 * DAY_S)
    told = [(one.key, one.label, one.freed_bytes, one.why) for one in offered.decision.removals]
    assert told == [
        (OLD, "Python 3.11.2, 1 package", 100, "unused for 3.0 days"),
        (USED, "Python 3.11.2, 1 package", 100, "unused for 2.0 days"),
    ]
    assert (offered.leftovers, offered.leftover_bytes) == ((HALF,), 5)
    assert machine.kept == {OLD, USED, NEW}


def test_one_in_use_stays_whatever_its_age_and_is_told(machine: Machine) -> None:
    machine.shelf.mark(USED, mine(), "attempt")
    offered = machine.offer(max_bytes=0)
    assert offered.decision.kept_by_reason == {"in use by a job": 1}
    dropped = drop(machine.shelf, offered, clock=machine.clock)
    assert (dropped.freed_bytes, machine.kept) == (205, {USED})
    assert not os.path.exists(machine.shelf.place(HALF))


def test_one_that_was_used_since_it_was_offered_stays(machine: Machine) -> None:
    offered = machine.offer(max_bytes=0)
    machine.shelf.use(OLD)
    drop(machine.shelf, offered, clock=machine.clock)
    assert machine.kept == {OLD}
    assert machine.offer(max_bytes=0).decision.kept_by_reason == {"used a moment ago": 1}


def test_one_that_somebody_makes_is_no_leftover(machine: Machine) -> None:
    machine.shelf.make_locks()
    with FileLock(machine.shelf.lock_path(HALF), "builds", clock=machine.clock):
        assert machine.offer().leftovers == ()
    assert machine.offer().leftovers == (HALF,)
