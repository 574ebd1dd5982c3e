"""Processes that race for one device while others of them are killed, and how soon who waits is woken.

ledger_race.py race HOME PROCESSES ROUNDS      prints rounds, seconds, killed, the most that was held at one moment
ledger_race.py wake HOME TIMES                 prints seconds from a release, and from a kill, to the next one's room

What is held is witnessed by a table in shared memory and not by the ledger: whoever was granted room writes it there,
and takes it out before he gives it back. Two equal looks, with everybody in them alive afterwards, are one moment.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import struct
import sys
import time
from collections.abc import Callable

from stoker.core.clock import SystemClock
from stoker.devices.ledger.ledger import Ledger
from stoker.devices.ledger.reservations import CandidateDevice, DeviceRequest, FakeMeter, Reservation
from stoker.host.identity import read_row

GIB = 1024**3
CARD = CandidateDevice(uuid="GPU-a", total_bytes=24 * GIB)
SLOT = struct.Struct("=qqqqq")
"""Changes, process, bytes, rounds, the most that it saw held."""
KILL_EVERY_S = 0.1


def main() -> None:
    what, home, *numbers = sys.argv[1:]
    if what == "race":
        print(json.dumps(race(home, *map(int, numbers))))
    else:
        print(json.dumps(wake(home, int(numbers[0]))))


def ledger_in(home: str) -> Ledger:
    return Ledger(f"{home}/ledger", clock=SystemClock(), meter=FakeMeter({CARD.uuid: CARD.total_bytes}))


def fork(act: Callable[[], None]) -> int:
    pid = os.fork()
    if not pid:
        try:
            act()
        finally:
            os._exit(1)
    return pid


def race(home: str, processes: int, rounds: int) -> dict[str, float]:
    table = mmap.mmap(-1, processes * SLOT.size)

    def say(slot: int, size_bytes: int, done: int = 0, seen: int = 0) -> None:
        changes, _, _, before, most = SLOT.unpack_from(table, slot * SLOT.size)
        SLOT.pack_into(table, slot * SLOT.size, changes + 1, os.getpid(), size_bytes, before + done, max(most, seen))

    def rows() -> list[tuple[int, ...]]:
        return list(SLOT.iter_unpack(table[:]))

    def held_now() -> int:
        first, second = rows(), rows()
        same = [one for one, other in zip(first, second, strict=True) if one[:3] == other[:3] and one[2]]
        alive = [(row, size) for _, pid, size, *_ in same if (row := read_row(pid)) is not None]
        return sum(size for row, size in alive if not row.is_gone)

    def run(slot: int, seed: int) -> None:
        dice, ledger = random.Random(seed), ledger_in(home)
        while True:
            ask = DeviceRequest(
                job="race", devices=(CARD,), vram_bytes=dice.randrange(1, 13) * GIB, may_share=dice.random() < 0.8
            )
            held = ledger.wait(ask, 600.0)
            say(slot, ask.vram_bytes if ask.may_share else CARD.total_bytes)
            seen = held_now()
            if seen > (CARD.usable_bytes if ask.may_share else CARD.total_bytes):
                os._exit(2)
            say(slot, 0, 1, seen)
            ledger.release(held)

    begun_s = time.perf_counter()
    racers = [fork(lambda slot=slot: run(slot, slot)) for slot in range(processes)]  # type: ignore[misc]
    killed = 0
    while (done := sum(row[3] for row in rows())) < rounds:
        time.sleep(KILL_EVERY_S)
        slot = killed % processes
        end(racers[slot])
        killed += 1
        racers[slot] = fork(lambda slot=slot, seed=processes + killed: run(slot, seed))  # type: ignore[misc]
    seconds = time.perf_counter() - begun_s
    for pid in racers:
        end(pid)
    most = max(row[4] for row in rows())
    return {"rounds": done, "seconds": seconds, "killed": killed, "most": most, "capacity": CARD.total_bytes}


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != -signal.SIGKILL:
        raise RuntimeError("more was promised than there is, or a racer failed")


def wake(home: str, times: int) -> dict[str, list[float]]:
    ledger, ask = ledger_in(home), DeviceRequest(job="wake", devices=(CARD,))
    taken: dict[str, list[float]] = {"release": [], "kill": []}
    for how, seconds in taken.items():
        for _ in range(times):
            say_r, say_w = os.pipe()
            if how == "release":
                held = ledger.reserve(ask)
                assert isinstance(held, Reservation)
                waiter = fork(lambda: (ledger_in(home).wait(ask), os.write(say_w, b"x"), signal.pause())[0] and None)  # noqa: B023
                while not ledger.state().waiting:
                    time.sleep(0.001)
                begun_s = time.perf_counter()
                ledger.release(held)
                os.read(say_r, 1)
                seconds.append(time.perf_counter() - begun_s)
                end(waiter)
            else:
                holder = fork(lambda: (ledger_in(home).wait(ask), os.write(say_w, b"x"), signal.pause())[0] and None)  # noqa: B023
                os.read(say_r, 1)
                begun: list[float] = []

                def kill(_progress: object, holder: int = holder, begun: list[float] = begun) -> None:
                    begun.append(time.perf_counter())
                    os.kill(holder, signal.SIGKILL)

                held = ledger.wait(ask, 60.0, kill)
                seconds.append(time.perf_counter() - begun[0])
                os.waitpid(holder, 0)
                ledger.release(held)
            os.close(say_r)
            os.close(say_w)
    return taken


main()
