"""`stoker machines memory`: who holds how much of which device; with `--wait`, a place in line for room on one."""

from __future__ import annotations

import os
from typing import Any

from stoker.faces.cli.call import Call
from stoker.faces.cli.grammar import Grammar, Option, duration, size_with_unit, whole
from stoker.faces.view.device_memory import NotMeasured, memory_lines
from stoker.hardware.ledger.answers import Held, Progress
from stoker.hardware.ledger.asking import WAIT_S, Ask, Candidate
from stoker.model.devices import Device
from stoker.model.errors import Usage
from stoker.model.suggest import did_you_mean
from stoker.model.units import format_duration, format_size

_WHOLE = "whole"


def _room(text: str) -> int:
    """Read how much is wanted; `whole` is a device of which nothing more is said."""
    return 0 if text.strip().lower() == _WHOLE else size_with_unit(text)


GRAMMAR = Grammar(
    "machines memory",
    about=(
        "Say who holds how much of which accelerator on this machine, by the ledger that all runs share and by the "
        "driver's own measure, and who waits. With --wait, queue for room, first come first served: PROGRAM then runs "
        "holding it, sees only its device (CUDA_VISIBLE_DEVICES), and its exit code is ours; its standard input is "
        "empty. Without PROGRAM the command ends when there is room, and holds nothing. Exit code 50 if it can never "
        "fit, 51 if no room came free in time."
    ),
    options=(
        Option("--wait", value="SIZE", read=_room, help=f"how much on each device: 6GiB, or `{_WHOLE}`"),
        Option(
            "--on",
            value="DEVICE",
            is_many=True,
            help="only this device: its UUID or the beginning of it, or its number",
        ),
        Option("--count", value="N", read=whole(1), help="how many devices, together; 1 unless told"),
        Option("--share", help="let others hold the rest of the device; else it is held whole"),
        Option(
            "--timeout",
            value="TIME",
            read=duration,
            help=f"give up after this long; {format_duration(WAIT_S)} unless told",
        ),
        Option("--job", value="NAME", help="what others see it is for; the program's name unless told"),
    ),
    examples=(
        "stoker machines memory",
        "stoker machines memory --json",
        "stoker machines memory --wait 6GiB --share -- python train.py",
        "stoker machines memory --wait whole --timeout 2h -- ./train.sh",
    ),
    takes_program=True,
)


def perform(call: Call, given: dict[str, Any]) -> int:
    """Show the ledger, or queue for room in it."""
    program = given["program"]
    if given["wait"] is None and program is None:
        stray = [f"--{name}" for name in ("on", "count", "share", "timeout", "job") if given[name]]
        if stray:
            raise Usage(f"{', '.join(stray)} without --wait", hint="stoker machines memory --wait 6GiB -- PROGRAM")
        return _show(call)
    if program is not None and not program:
        raise Usage("no program follows --", hint="stoker machines memory --wait 6GiB -- python train.py")
    if given["share"] and not given["wait"]:
        raise Usage("--share needs to know how much", hint="stoker machines memory --wait 6GiB --share -- PROGRAM")
    return _hold(call, _ask(call, given), given)


def _show(call: Call) -> int:
    parts, out = call.parts, call.out
    devices = parts.devices
    candidates = [one for one in map(Candidate.of, devices) if one is not None]
    state = parts.ledger.state(candidates)
    _warn(call)
    unknown = tuple(NotMeasured(uuid=one.uuid, name=one.name) for one in devices if one.total_bytes is None)
    for line in memory_lines(state, unknown, columns=out.columns):
        out.line(line)
    for device in state.devices:
        out.object(device.to_dict())
    for waiter in state.waiting:
        out.object(waiter.to_dict())
    return 0


def _ask(call: Call, given: dict[str, Any]) -> Ask:
    devices = call.parts.devices
    chosen = [_named(word, devices) for word in given["on"]] or list(devices)
    named = {device.uuid: device for device in chosen}
    candidates = tuple(one for one in map(Candidate.of, named.values()) if one is not None)
    program = given["program"]
    return Ask(
        job=given["job"] or (os.path.basename(program[0]) if program else "room"),
        devices=candidates,
        count=given["count"] or 1,
        vram_bytes=given["wait"] or 0,
        may_share=given["share"],
    )


def _hold(call: Call, ask: Ask, given: dict[str, Any]) -> int:
    from stoker.faces.cli.machines.holding import find, run_holding

    ledger = call.parts.ledger
    program = given["program"]
    path = find(call, program) if program else ""
    told = _Told(call, ask)
    timeout_s = WAIT_S if given["timeout"] is None else given["timeout"]
    held = ledger.wait(ask, timeout_s, told.progress)
    try:
        _warn(call)
        told.granted(held)
        if not program:
            ledger.release(held)
            return 0
        return run_holding(call, held, path, program, shares=not all(share.is_exclusive for share in held.entry.shares))
    except BaseException:
        ledger.release(held)
        raise


class _Told:
    """What is said while waiting: each answer once, and then that there is room."""

    def __init__(self, call: Call, ask: Ask) -> None:
        self._call = call
        self._ask = ask
        self._last = ""
        self._begun_s = call.parts.clock.monotonic_s()

    def progress(self, progress: Progress) -> None:
        answer = progress.answer
        line = f"place {progress.place} in line for {self._what()}: {answer.why}"
        if line == self._last:
            return
        self._last = line
        self._call.out.note(line)
        self._call.out.object(
            {
                "state": "waiting",
                "job": self._ask.job,
                "place": progress.place,
                "why": answer.why,
                "bound": str(answer.bound),
                "device": answer.nearest.uuid,
                "missing_bytes": answer.nearest.missing_bytes,
                "elapsed_s": round(progress.elapsed_s, 3),
                "remaining_s": round(progress.remaining_s, 3),
            }
        )

    def granted(self, held: Held) -> None:
        fake = " (invented by STOKER_GPU_FAKE)" if any(share.is_fake for share in held.entry.shares) else ""
        waited_s = self._call.parts.clock.monotonic_s() - self._begun_s
        after = f" after {format_duration(waited_s)}" if self._last else ""
        self._call.out.note(f"{self._what()} on {', '.join(held.uuids)}{fake}{after}")
        self._call.out.object(
            {
                "state": "granted",
                "job": self._ask.job,
                "id": held.id,
                "devices": list(held.uuids),
                "vram_bytes": self._ask.vram_bytes or None,
                "is_exclusive": held.entry.shares[0].is_exclusive,
                "is_fake": bool(fake),
                "waited_s": round(waited_s, 3),
            }
        )

    def _what(self) -> str:
        if not self._ask.vram_bytes:
            return "a whole device" if self._ask.count == 1 else f"{self._ask.count} whole devices"
        return format_size(self._ask.vram_bytes)


def _named(word: str, devices: tuple[Device, ...]) -> Device:
    """Find the device that a user means."""
    exact = [one for one in devices if word in (one.uuid, str(one.index))]
    found = exact or [one for one in devices if one.uuid.startswith(word)]
    if len(found) == 1:
        return found[0]
    if found:
        raise Usage(f"--on {word} could be {', '.join(one.uuid for one in found)}", hint="write more of it")
    hint = did_you_mean(word, [one.uuid for one in devices]) or "stoker machines memory lists the devices"
    raise Usage(f"no device here is called {word!r}", hint=hint)


def _warn(call: Call) -> None:
    ledger = call.parts.ledger
    while ledger.warnings:
        call.out.note(f"warning: {ledger.warnings.pop(0)}")
