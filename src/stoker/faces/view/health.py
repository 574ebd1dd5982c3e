"""How machines are, as lines of text: symptoms with the command that helps, and what their workers found out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from stoker.faces.view.times import ago
from stoker.faces.view.trust import day
from stoker.model.printable import one_line
from stoker.model.units import format_duration

if TYPE_CHECKING:
    from stoker.wire.health import HookView
    from stoker.wire.views import MachineView, SymptomView

HOOK_HEADER = ("id", "url", "on", "jobs", "made", "state", "by")
_CLOCK_OFF_S = 2.0
"""A difference below this is the network's."""
_SHOWN = 10


def symptom_lines(symptoms: Sequence[SymptomView], now_s: float) -> Iterator[str]:
    """Say what is wrong, each with what helps; of very much the first."""
    for one in symptoms[:_SHOWN]:
        where = f"{one.machine} {one.device}" if one.device else one.machine
        yield one_line(f"! {where} {one.symptom} (since {ago(one.since_s, now_s)}): {one.message}")
        if one.hint:
            yield f"    {one_line(one.hint)}"
    if len(symptoms) > _SHOWN:
        yield f"and {len(symptoms) - _SHOWN} more symptoms: stoker machines show NAME"


def health_rows(machine: MachineView, now_s: float) -> Iterator[list[str]]:
    """Say in rows what is known of a machine's program, clock, certificate, environments and symptoms."""
    report = machine.report
    skew = "; not the coordinator's version" if machine.is_skewed else ""
    protocol = f", protocol {report['protocol']}" if report.get("protocol") else ""
    yield ["Stoker", f"{machine.version or 'says no version'}{protocol}{skew}"]
    if isinstance(offset_s := report.get("offset_s"), int | float):
        yield ["clock", _offset(float(offset_s))]
    if machine.certificate_until_s is not None:
        yield ["certificate", f"until {day(machine.certificate_until_s)}"]
    ready = machine.environments.get("environments") or ()
    impossible = machine.environments.get("impossible") or {}
    if ready or impossible:
        cannot = f"; {len(impossible)} can't be made there" if impossible else ""
        yield ["environments", f"{len(ready)} ready{cannot}"]
    if machine.trees:
        yield ["trees", str(machine.trees)]
    for one in machine.symptoms:
        where = f"{one.device}: " if one.device else ""
        yield ["symptom", f"{one.symptom} since {ago(one.since_s, now_s)}: {where}{one.message}; {one.hint}"]
    findings = [line for line in report.get("findings", ()) if isinstance(line, dict)]
    told = [line for line in findings if line.get("verdict") != "ok"]
    if findings:
        at = f" ({ago(float(report.get('at_s', now_s)), now_s)})"
        yield ["doctor", f"{len(findings)} checks, {len(told)} of them not ok{at}"]
    for line in told:
        hint = f"; {line['hint']}" if line.get("hint") else ""
        yield [f"{line.get('name', '')} (doctor)", f"{line.get('verdict', '')}: {line.get('message', '')}{hint}"]


def hook_row(hook: HookView, now_s: float) -> list[str]:
    """Give a hook as a row of a table."""
    if hook.closed_s is not None:
        state = f"closed {ago(hook.closed_s, now_s)}: {hook.last_error}"
    elif hook.failures:
        times = "once" if hook.failures == 1 else f"{hook.failures} times"
        state = f"failed {times}: {hook.last_error}"
    else:
        state = "open"
    told = ", ".join(hook.on) or "the usual"
    return [str(hook.id), hook.url, told, str(hook.jobs or "all"), ago(hook.made_s, now_s), one_line(state), hook.by]


def _offset(offset_s: float) -> str:
    if abs(offset_s) < _CLOCK_OFF_S:
        return "as the coordinator's"
    return f"{format_duration(abs(offset_s))} {'ahead of' if offset_s > 0 else 'behind'} the coordinator's"
