"""Thirty-two processes race for one device, and are killed at random: what they hold together never exceeds it.

The witness is not the ledger. Whoever was granted room writes how much into a table in shared memory, and takes it out
before it gives the room back. Two looks at the table that are equal, with every holder alive after the second, mean
that all of them held their room at the same moment.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import struct
import time
from functools import partial
from pathlib import Path

import pytest

from stoker.core.device import GIB
from stoker.devices.ledger.reservations import DeviceRequest, Reservation
from tests.lengths import examples
from tests.unit.devices.ledger.lab import CARD, USABLE_BYTES, real_ledger
from tests.unit.host.real_processes import fork, is_running

PROCESSES = 32
LEAST_KILLED = 5
SLOT = struct.Struct("=qqqq")
"""Changes, process, bytes, rounds."""


class Table:
    """What everybody says that he holds."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, PROCESSES * SLOT.size)

    def say(self, slot: int, size_bytes: int, *, is_round: bool = False) -> None:
        changes, _, _, rounds = SLOT.unpack_from(self._memory, slot * SLOT.size)
        SLOT.pack_into(self._memory, slot * SLOT.size, changes + 1, os.getpid(), size_bytes, rounds + is_round)

    def rows(self) -> list[tuple[int, int, int, int]]:
        return list(SLOT.iter_unpack(self._memory[:]))

    def rounds(self) -> int:
        return sum(row[3] for row in self.rows())

    def most_at_once(self) -> int:
        """Return what is certainly held at one moment."""
        first = self.rows()
        second = self.rows()
        same = [one for one, other in zip(first, second, strict=True) if one[:3] == other[:3] and one[2]]
        return sum(size for _, pid, size, _ in same if is_running(pid))


def race(folder: Path, table: Table, slot: int, seed: int) -> None:
    """Take room and give it back, now waiting for it and now not, until killed."""
    dice = random.Random(seed)
    ledger = real_ledger(folder)
    while True:
        share = dice.random() < 0.8
        size_bytes = dice.randrange(1, 13) * GIB
        ask = DeviceRequest(job=f"racer {slot}", devices=(CARD,), vram_bytes=size_bytes, may_share=share)
        held = ledger.reserve(ask) if dice.random() < 0.5 else None
        if not isinstance(held, Reservation):
            held = ledger.wait(ask, 300.0)
        table.say(slot, size_bytes if share else CARD.total_bytes)
        most = table.most_at_once()
        assert most <= (USABLE_BYTES if share else CARD.total_bytes), f"{most} promised"
        if dice.random() < 0.3:
            os.sched_yield()
        table.say(slot, 0, is_round=True)
        ledger.release(held)


def run_races(folder: Path, rounds: int, patience_s: float) -> tuple[int, int]:
    """Race until that many rounds are done, and six racers killed; return how many of both."""
    table, dice = Table(), random.Random(1)
    racers = {slot: fork(partial(race, folder, table, slot, slot)) for slot in range(PROCESSES)}
    deadline_s = time.monotonic() + patience_s
    killed, most = 0, 0
    try:
        while table.rounds() < rounds or killed <= LEAST_KILLED:
            assert time.monotonic() < deadline_s, f"only {table.rounds()} rounds: somebody waits for nothing"
            time.sleep(0.1)
            most = max(most, table.most_at_once())
            slot = dice.randrange(PROCESSES)
            os.kill(racers[slot], signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(racers[slot], 0)[1])
            assert status == -signal.SIGKILL, "a racer has failed"
            killed += 1
            racers[slot] = fork(partial(race, folder, table, slot, PROCESSES + killed))
    finally:
        failed = 0
        for pid in racers.values():
            os.kill(pid, signal.SIGKILL)
            failed += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != -signal.SIGKILL
    assert failed == 0, "a racer has failed"
    assert most <= CARD.total_bytes
    return table.rounds(), killed


def test_32_processes_never_hold_more_than_there_is_though_they_are_killed(memory: Path) -> None:
    done, killed = run_races(memory, examples(100, 200), patience_s=300.0)
    print(f"{done} rounds, {killed} killed")
    assert killed > LEAST_KILLED
    # Whatever the dead held is free, and nothing of them is left.
    ledger = real_ledger(memory)
    assert isinstance(ledger.reserve(DeviceRequest(job="after", devices=(CARD,))), Reservation)
    assert len(list((memory / "ledger" / "leases").iterdir())) == 1
    assert list((memory / "ledger" / "line").iterdir()) == []
    assert ledger.warnings == []


@pytest.mark.slow
def test_32_processes_never_hold_more_than_there_is_in_ten_thousand_rounds(memory: Path) -> None:
    done, killed = run_races(memory, 10_000, patience_s=900.0)
    print(f"{done} rounds, {killed} killed")
