"""`stoker doctor`: everything that matters about this machine in one screen, each line with a verdict and a hint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, whole
from stoker.core.capability import Capability
from stoker.devices.checkup import (
    WORDS,
    Check,
    check_devices,
    check_machine,
    check_recipes,
    check_required,
    check_surroundings,
    check_torch,
    faked_by,
    missing,
    read_words,
)
from stoker.devices.smoke import check_smoke
from stoker.views.device_lines import check_lines, summary
from stoker.views.text_tables import ASCII, UNICODE

if TYPE_CHECKING:
    from stoker.gang.gang_check import GangSelfTest

_FORMAT = 1


def _read_ranks(text: str) -> int:
    """Read how many ranks are meant; 0 for as many as fit."""
    return 0 if text == "auto" else whole(1)(text)


GRAMMAR = Grammar(
    "doctor",
    about=(
        "Look at this machine and say what matters: processors, memory, disks, each accelerator with three separate "
        "answers (installed, visible to programs, usable), torch, containment, clock, ports. ✓ is well, ! is worth "
        "knowing, ✗ stops work; a hint says what to do. Nothing is changed. Exit code 1 only if something that "
        "--require names is not there, or if --smoke computes wrongly; --gang has codes of its own (54: a rank failed, "
        "55: a rank was silent, 29: torch is missing)."
    ),
    options=(
        Option(
            "--require",
            value="WORDS",
            read=read_words,
            is_many=True,
            help=f"fail unless these can be used: {', '.join(WORDS)}",
        ),
        Option("--deep", help="ask torch as well, in a child, even if nothing speaks for a device"),
        Option("--smoke", help="compute something small on the CPU and on each device, and compare"),
        Option(
            "--gang",
            value="N",
            read=_read_ranks,
            help="bring N ranks up together and have them add something up; auto: one for each GPU, at least 2",
        ),
    ),
    examples=(
        "stoker doctor",
        "stoker doctor --require cuda",
        "stoker doctor --smoke --json",
        "stoker doctor --gang 2",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Look, judge, show."""
    parts = call.parts
    required = tuple(dict.fromkeys(word for words in given["require"] for word in words))
    capability = parts.detect(asks_torch=True, deep=given["deep"])
    lacking = missing(capability, required)
    smoked = parts.smoke(capability) if given["smoke"] else ()
    rehearsal = None if given["gang"] is None else parts.rehearse(given["gang"], capability)
    checks = [
        *check_machine(capability),
        *check_surroundings(parts.survey),
        *check_devices(capability),
        *check_torch(capability),
        check_recipes(len(capability.recipes), parts.recipes[1]),
        *check_smoke(smoked),
        *_check_gang(rehearsal),
        *check_required(lacking),
    ]
    _show(call, capability, checks)
    call.out.object(
        {
            "format": _FORMAT,
            "stoker_version": parts.version,
            "is_ready": not lacking,
            "required": list(required),
            "missing": [one.word for one in lacking],
            "is_fake": capability.is_fake,
            "label": faked_by(capability),
            "checks": [check.to_dict() for check in checks],
            "smoke": [one.to_dict() for one in smoked],
            "gang": None if rehearsal is None else rehearsal.to_dict(),
            "capability": capability.to_dict(),
        }
    )
    if lacking and not call.out.is_terminal:
        # Whoever looks at the screen has read it there.
        for one in lacking:
            call.out.complain(f"stoker: {one.message}\nhint: {one.hint}")
    if rehearsal is not None and rehearsal.error is not None:
        return rehearsal.error.exit_code
    return 1 if lacking or any(one.is_wrong for one in smoked) else 0


def _check_gang(rehearsal: GangSelfTest | None) -> tuple[Check, ...]:
    if rehearsal is None:
        return ()
    from stoker.views.device_lines import check_gang

    return check_gang(rehearsal)


def _show(call: CommandContext, capability: Capability, checks: list[Check]) -> None:
    out = call.out
    label = f" ({faked})" if (faked := faked_by(capability)) else ""
    out.line(
        f"{capability.hostname}: Stoker {call.parts.version}, {capability.os} {capability.arch}, "
        f"Python {capability.python_version}{label}"
    )
    signs = UNICODE if out.is_unicode else ASCII
    for line in check_lines(checks, signs=signs, columns=out.columns, paint=out.paint):
        out.line(line)
    out.line(summary(checks))
