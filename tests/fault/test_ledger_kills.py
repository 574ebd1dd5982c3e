"""SIGKILL at every step of the ledger: afterwards it says what is true, and the next one is not kept waiting."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from stoker.devices.ledger.ledger import Ledger
from stoker.devices.ledger.reservations import DeviceWaitProgress
from stoker.devices.ledger.transactions import STEPS
from stoker.host.identity import of_pid
from tests.unit.devices.ledger.lab import held, not_now, real_ledger, whole
from tests.unit.host.real_processes import code_of, fork, kill_and_reap, wait_until


def killing_at(step: str) -> Callable[[str], None]:
    def on_step(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return on_step


def everything(ledger: Ledger) -> None:
    """Go through every step there is: wait in line, leave it, take, hand over, renew, release."""
    first = held(ledger.reserve(whole()))
    with ledger.line_up(whole()) as place:
        not_now(place.look())
    ledger.renew(first)
    ledger.note_measured(first, {"GPU-a": 5})
    # The owner of everything is this process: with its end nothing may be left.
    ledger.release(first)
    ledger.release(held(ledger.reserve(whole())))


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_leaves_a_true_ledger(memory: Path, step: str) -> None:
    assert code_of(fork(lambda: everything(real_ledger(memory, on_step=killing_at(step))))) == -signal.SIGKILL
    ledger = real_ledger(memory)
    room = held(ledger.reserve(whole()))
    assert [path.name.rpartition("-")[2] for path in (memory / "ledger" / "leases").iterdir()] == [room.id]
    assert list((memory / "ledger" / "line").iterdir()) == []
    assert ledger.warnings == []
    ledger.release(room)


@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_takes_nothing_from_who_holds_room(memory: Path, step: str) -> None:
    ledger = real_ledger(memory)
    room = held(ledger.reserve(whole()))

    def meddle() -> None:
        other = real_ledger(memory, on_step=killing_at(step))
        with other.line_up(whole()) as place:
            not_now(place.look())
        other.state()

    fork_and_reap(meddle)
    assert [one.entry.id for one in ledger.state().devices[0].holders] == [room.id]
    assert not_now(ledger.reserve(whole())).ahead == 0


@pytest.mark.parametrize("step", ["leases:write", "leases:name", "leases:named", "leases:remove"])
def test_a_kill_in_a_handover_leaves_the_room_with_one_of_the_two(memory: Path, step: str) -> None:
    heir = fork(signal.pause)
    try:
        identity = of_pid(heir)
        assert identity is not None
        steps: list[str] = []

        def kill_in_handover(name: str) -> None:
            if steps and name == step:
                os.kill(os.getpid(), signal.SIGKILL)

        def hand_over() -> None:
            ledger = real_ledger(memory, on_step=kill_in_handover)
            room = held(ledger.reserve(whole()))
            steps.append("handing over")
            ledger.hand_over(room, identity)

        assert code_of(fork(hand_over)) == -signal.SIGKILL
        ledger = real_ledger(memory)
        if step in ("leases:write", "leases:name"):
            # It was not handed over, and who had it is gone.
            ledger.release(held(ledger.reserve(whole())))
        else:
            assert f"process {heir}" in not_now(ledger.reserve(whole())).why
    finally:
        kill_and_reap(heir)
    held(real_ledger(memory).reserve(whole()))


def test_a_waiter_hears_of_a_holders_death(memory: Path) -> None:
    holder = fork(lambda: (held(real_ledger(memory).reserve(whole())), signal.pause()))
    ledger = real_ledger(memory)
    wait_until(lambda: bool(ledger.state().devices))
    killed_s: list[float] = []

    def kill(_progress: object) -> None:
        os.kill(holder, signal.SIGKILL)
        killed_s.append(time.monotonic())

    # Nobody knocks for the dead; without hearing of it, it would take five seconds.
    ledger.wait(whole(), 4.0, kill)
    print(f"woken {1000 * (time.monotonic() - killed_s[0]):.1f} ms after the kill")
    os.waitpid(holder, 0)
    assert len(killed_s) == 1


def test_a_waiter_hears_of_the_death_of_who_was_before_it(memory: Path) -> None:
    ledger = real_ledger(memory)
    room = held(ledger.reserve(whole()))
    ahead = fork(lambda: real_ledger(memory).wait(whole()))
    wait_until(lambda: len(ledger.state().waiting) == 1)
    places: list[int] = []

    def follow(progress: DeviceWaitProgress) -> None:
        places.append(progress.place)
        if len(places) == 1:
            os.kill(ahead, signal.SIGKILL)
        else:
            ledger.release(room)

    real_ledger(memory).wait(whole(), 4.0, follow)
    os.waitpid(ahead, 0)
    assert places == [2, 1]


def test_what_an_owners_session_leaves_behind_still_holds_the_room(memory: Path) -> None:
    pipe_r, pipe_w = os.pipe()

    def lead() -> None:
        os.setsid()
        child = fork(signal.pause)
        held(real_ledger(memory).reserve(whole()))
        os.write(pipe_w, str(child).encode())
        signal.pause()

    leader = fork(lead)
    child = int(os.read(pipe_r, 32))
    try:
        kill_and_reap(leader)
        ledger = real_ledger(memory)
        not_now(ledger.reserve(whole()))
        holder = ledger.state().devices[0].holders[0]
        assert (holder.entry.owner.pid, holder.left_behind) == (leader, child)
        seen: list[object] = []

        def kill(progress: object) -> None:
            seen.append(progress)
            os.kill(child, signal.SIGKILL)

        ledger.wait(whole(), 4.0, kill)
        assert len(seen) == 1
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.close(pipe_r)
        os.close(pipe_w)


def fork_and_reap(action: Callable[[], object]) -> None:
    os.waitpid(fork(action), 0)
