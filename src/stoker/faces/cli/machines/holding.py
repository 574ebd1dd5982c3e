"""A program that runs while it holds room on a device.

The program waits at a gate until it is the owner of what was promised. So whoever is killed when, the room is held
while the program lives, and never longer. Meanwhile signals go to the program, and the lease is renewed and measured.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from stoker.faces.cli.call import Call
from stoker.hardware.ledger.answers import Held
from stoker.host.entry import Entry, find_program, let_in
from stoker.host.exit import Exit
from stoker.host.processes import Child, group_members, start
from stoker.model.errors import StokerError
from stoker.model.units import format_size
from stoker.plan.device.variables import device_variables


def find(call: Call, program: list[str]) -> str:
    """Find the program before anybody waits for it."""
    settings = call.parts.settings
    return find_program(program[0], cwd=settings.folder, env=settings.environment)


def run_holding(call: Call, held: Held, path: str, program: list[str], *, shares: bool) -> int:
    """Run the program, own what is held by it, and give it back at its end; the exit code is the program's."""
    out, ledger = call.out, call.parts.ledger
    child, held = _start(call, held, path, program, shares=shares)
    try:
        with _forwarded(child):
            ended = _watch(call, child, held)
    except BaseException:
        # Whoever gives the room back must not leave the program in it.
        child.stop(grace_s=0.0)
        raise
    left = group_members(child.identity)
    if left:
        # They may still use the device; the reservation lives as long as they do.
        pids = ", ".join(str(row.pid) for row in left)
        out.note(f"note: {program[0]} has ended and left process {pids} behind, which holds the room until it ends")
    else:
        ledger.release(held)
    code = ended.status if ended.status is not None else 128 + (ended.signal or 0)
    out.object({"state": "ended", "exit_code": code, "signal": ended.signal})
    return code


def _start(call: Call, held: Held, path: str, program: list[str], *, shares: bool) -> tuple[Child, Held]:
    settings = call.parts.settings
    by_uuid = {device.uuid: device for device in call.parts.devices}
    share = held.entry.shares[0].promised_bytes if shares else None
    chosen = [by_uuid[uuid] for uuid in held.uuids]
    env = {**settings.environment, **device_variables(chosen, settings.environment, vram_bytes=share)}
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            gate = Entry(gate_fd=theirs.fileno())
            child = start([path, *program[1:]], cwd=settings.folder, env=env, stdout=1, stderr=2, entry=gate)
        try:
            held = call.parts.ledger.hand_over(held, child.identity)
            let_in(ours)
        except BaseException:
            child.stop(grace_s=0.0)
            raise
    return child, held


def _watch(call: Call, child: Child, held: Held) -> Exit:
    """Wait for the end, renewing the lease three times in its length and saying once if the promise is exceeded."""
    ledger = call.parts.ledger
    has_warned = has_lost = False
    while True:
        with suppress(TimeoutError):
            return child.wait(held.entry.lease_s / 3)
        with suppress(StokerError):
            measured = ledger.measure(held)
            if ledger.renew(held) and not has_lost:
                has_lost = True
                call.out.note(f"warning: the lease was past, and others were promised the room of {held.entry.job}")
            if measured is not None and measured.is_over and not has_warned:
                has_warned = True
                call.out.note(
                    f"warning: {held.entry.job} takes {format_size(measured.measured_bytes)} of {measured.uuid}, "
                    f"{measured.percent} % of the {format_size(measured.promised_bytes)} that it asked for"
                )


@contextmanager
def _forwarded(child: Child) -> Iterator[None]:
    """Pass signals on to the program's group; how it ends is its own business."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.identity.pid, number)

    before: dict[signal.Signals, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, pass_on)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
