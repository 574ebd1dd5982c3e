"""`stoker machines memory`: list reservations of device memory; with `--wait`, queue for memory."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, duration, size_with_unit, whole
from stoker.core.device import Device
from stoker.core.errors import StokerError, Usage
from stoker.core.text import did_you_mean, format_duration, format_size
from stoker.devices.ledger.reservations import WAIT_S, CandidateDevice, DeviceRequest, DeviceWaitProgress, Reservation
from stoker.engine.device_gate import device_variables
from stoker.host.box_entry import ChildSetup, find_program, let_in
from stoker.host.identity import ProcessExit
from stoker.host.processes import Child, group_members, start
from stoker.views.device_lines import UnmeasuredDevice, memory_lines

_WHOLE = "whole"


def _room(text: str) -> int:
    """Parse a size; `whole` is 0, a whole device."""
    return 0 if text.strip().lower() == _WHOLE else size_with_unit(text)


GRAMMAR = Grammar(
    "machines memory",
    about=(
        "List the device memory reservations of this machine, by the shared ledger and as measured by the driver, and "
        "the queue. With --wait, queue for memory (first come, first served), then run PROGRAM with the reservation: "
        "it sees only its device (CUDA_VISIBLE_DEVICES), its standard input is empty, and its exit code is returned. "
        "Without PROGRAM, exit when there is memory, and hold nothing. Exit code 50 if it can never fit, 51 after the "
        "timeout."
    ),
    options=(
        Option("--wait", value="SIZE", read=_room, help=f"memory on each device: 6GiB, or `{_WHOLE}`"),
        Option(
            "--on",
            value="DEVICE",
            is_many=True,
            help="only this device: UUID, UUID prefix, or number",
        ),
        Option("--count", value="N", read=whole(1), help="number of devices (default: 1)"),
        Option("--share", help="allow other reservations on the device (default: exclusive)"),
        Option(
            "--timeout",
            value="TIME",
            read=duration,
            help=f"maximum wait (default: {format_duration(WAIT_S)})",
        ),
        Option("--job", value="NAME", help="name of the reservation (default: the program's name)"),
    ),
    examples=(
        "stoker machines memory",
        "stoker machines memory --json",
        "stoker machines memory --wait 6GiB --share -- python train.py",
        "stoker machines memory --wait whole --timeout 2h -- ./train.sh",
    ),
    takes_program=True,
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Show the ledger, or queue for memory."""
    program = given["program"]
    if given["wait"] is None and program is None:
        stray = [f"--{name}" for name in ("on", "count", "share", "timeout", "job") if given[name]]
        if stray:
            raise Usage(f"{', '.join(stray)} without --wait", hint="stoker machines memory --wait 6GiB -- PROGRAM")
        return _show(call)
    if program is not None and not program:
        raise Usage("no program after --", hint="stoker machines memory --wait 6GiB -- python train.py")
    if given["share"] and not given["wait"]:
        raise Usage("--share needs a size", hint="stoker machines memory --wait 6GiB --share -- PROGRAM")
    return _hold(call, _request(call, given), given)


def _show(call: CommandContext) -> int:
    parts, out = call.parts, call.out
    devices = parts.devices
    candidates = [one for one in map(CandidateDevice.of, devices) if one is not None]
    state = parts.ledger.state(candidates)
    _warn(call)
    unknown = tuple(UnmeasuredDevice(uuid=one.uuid, name=one.name) for one in devices if one.total_bytes is None)
    out.lines(memory_lines(state, unknown, columns=out.columns))
    for device in state.devices:
        out.object(device.to_dict())
    for waiter in state.waiting:
        out.object(waiter.to_dict())
    return 0


def _request(call: CommandContext, given: dict[str, Any]) -> DeviceRequest:
    devices = call.parts.devices
    chosen = [_named(word, devices) for word in given["on"]] or list(devices)
    named = {device.uuid: device for device in chosen}
    candidates = tuple(one for one in map(CandidateDevice.of, named.values()) if one is not None)
    program = given["program"]
    return DeviceRequest(
        job=given["job"] or (os.path.basename(program[0]) if program else "room"),
        devices=candidates,
        count=given["count"] or 1,
        vram_bytes=given["wait"] or 0,
        may_share=given["share"],
    )


def _hold(call: CommandContext, request: DeviceRequest, given: dict[str, Any]) -> int:
    ledger = call.parts.ledger
    program = given["program"]
    path = find(call, program) if program else ""
    shown = _WaitPrinter(call, request)
    timeout_s = WAIT_S if given["timeout"] is None else given["timeout"]
    held = ledger.wait(request, timeout_s, shown.progress)
    try:
        _warn(call)
        shown.granted(held)
        if not program:
            ledger.release(held)
            return 0
        return run_holding(call, held, path, program, shares=not all(share.is_exclusive for share in held.shares))
    except BaseException:
        ledger.release(held)
        raise


class _WaitPrinter:
    """Prints the progress of a wait, each state once, and the grant."""

    def __init__(self, call: CommandContext, request: DeviceRequest) -> None:
        self._call = call
        self._request = request
        self._last = ""
        self._begun_s = call.parts.clock.monotonic_s()

    def progress(self, progress: DeviceWaitProgress) -> None:
        answer = progress.answer
        line = f"queue position {progress.place} for {self._what()}: {answer.why}"
        if line == self._last:
            return
        self._last = line
        self._call.out.note(line)
        self._call.out.object(
            {
                "state": "waiting",
                "job": self._request.job,
                "place": progress.place,
                "why": answer.why,
                "bound": str(answer.bound),
                "device": answer.nearest.uuid,
                "missing_bytes": answer.nearest.missing_bytes,
                "elapsed_s": round(progress.elapsed_s, 3),
                "remaining_s": round(progress.remaining_s, 3),
            }
        )

    def granted(self, held: Reservation) -> None:
        fake = " (invented by STOKER_GPU_FAKE)" if any(share.is_fake for share in held.shares) else ""
        waited_s = self._call.parts.clock.monotonic_s() - self._begun_s
        after = f" after {format_duration(waited_s)}" if self._last else ""
        self._call.out.note(f"{self._what()} on {', '.join(held.uuids)}{fake}{after}")
        self._call.out.object(
            {
                "state": "granted",
                "job": self._request.job,
                "id": held.id,
                "devices": list(held.uuids),
                "vram_bytes": self._request.vram_bytes or None,
                "is_exclusive": held.shares[0].is_exclusive,
                "is_fake": bool(fake),
                "waited_s": round(waited_s, 3),
            }
        )

    def _what(self) -> str:
        if not self._request.vram_bytes:
            return "a whole device" if self._request.count == 1 else f"{self._request.count} whole devices"
        return format_size(self._request.vram_bytes)


def _named(word: str, devices: tuple[Device, ...]) -> Device:
    """Find a device by UUID, UUID prefix or number."""
    exact = [one for one in devices if word in (one.uuid, str(one.index))]
    found = exact or [one for one in devices if one.uuid.startswith(word)]
    if len(found) == 1:
        return found[0]
    if found:
        raise Usage(f"--on {word} could be {', '.join(one.uuid for one in found)}", hint="write a longer prefix")
    hint = did_you_mean(word, [one.uuid for one in devices]) or "list the devices: stoker machines memory"
    raise Usage(f"no device {word!r}", hint=hint)


def _warn(call: CommandContext) -> None:
    ledger = call.parts.ledger
    while ledger.warnings:
        call.out.note(f"warning: {ledger.warnings.pop(0)}")


# A program that runs with a reservation.
#
# The program waits at a gate until it owns the reservation, so that the memory is held exactly as long as the program
# lives, whichever process is killed when. Meanwhile signals go to the program, and the lease is renewed and measured.


def find(call: CommandContext, program: list[str]) -> str:
    """Find the program before waiting for memory."""
    settings = call.parts.settings
    return find_program(program[0], cwd=settings.folder, env=settings.environment)


def run_holding(call: CommandContext, held: Reservation, path: str, program: list[str], *, shares: bool) -> int:
    """Run the program as owner of the reservation, and release it at its end; return the program's exit code."""
    out, ledger = call.out, call.parts.ledger
    child, held = _start(call, held, path, program, shares=shares)
    try:
        with _forwarded(child):
            ended = _watch(call, child, held)
    except BaseException:
        # The memory is released only after the program is gone.
        child.stop(grace_s=0.0)
        raise
    left = group_members(child.identity)
    if left:
        # They may still use the device; the reservation lives as long as they do.
        pids = ", ".join(str(row.pid) for row in left)
        out.note(f"note: {program[0]} has ended; its child process {pids} still holds the memory")
    else:
        ledger.release(held)
    code = ended.status if ended.status is not None else 128 + (ended.signal or 0)
    out.object({"state": "ended", "exit_code": code, "signal": ended.signal})
    return code


def _start(
    call: CommandContext, held: Reservation, path: str, program: list[str], *, shares: bool
) -> tuple[Child, Reservation]:
    settings = call.parts.settings
    by_uuid = {device.uuid: device for device in call.parts.devices}
    share = held.shares[0].promised_bytes if shares else None
    chosen = [by_uuid[uuid] for uuid in held.uuids]
    env = {**settings.environment, **device_variables(chosen, settings.environment, vram_bytes=share)}
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            gate = ChildSetup(gate_fd=theirs.fileno())
            child = start([path, *program[1:]], cwd=settings.folder, env=env, stdout=1, stderr=2, entry=gate)
        try:
            held = call.parts.ledger.hand_over(held, child.identity)
            let_in(ours)
        except BaseException:
            child.stop(grace_s=0.0)
            raise
    return child, held


def _watch(call: CommandContext, child: Child, held: Reservation) -> ProcessExit:
    """Wait for the end, renewing the lease three times per lease duration; warn once if the reservation is exceeded."""
    ledger = call.parts.ledger
    has_warned = has_lost = False
    while True:
        with suppress(TimeoutError):
            return child.wait(held.lease_s / 3)
        with suppress(StokerError):
            measured = ledger.measure(held)
            if ledger.renew(held) and not has_lost:
                has_lost = True
                call.out.note(f"warning: the lease of {held.job} had expired, and its memory was reserved by others")
            if measured is not None and measured.is_over and not has_warned:
                has_warned = True
                call.out.note(
                    f"warning: {held.job} uses {format_size(measured.measured_bytes)} on {measured.uuid}, "
                    f"{measured.percent} % of its reservation of {format_size(measured.promised_bytes)}"
                )


@contextmanager
def _forwarded(child: Child) -> Iterator[None]:
    """Forward signals to the program's process group."""

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
