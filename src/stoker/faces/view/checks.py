"""A checkup as lines of text: a sign, the name, what was found, and under it what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker.faces.view.signs import Signs
from stoker.faces.view.tables import table
from stoker.hardware.checkup import Check, State

_COLOURS = {State.OK: "green", State.WARN: "yellow", State.BAD: "red"}


def check_lines(checks: Sequence[Check], *, signs: Signs, columns: int, paint: Callable[[str, str], str]) -> list[str]:
    """Lay checks out. `columns` is the width of the screen, 0 for as wide as it gets; `paint` colours a sign."""
    by_state = {State.OK: signs.ran, State.WARN: signs.warned, State.BAD: signs.failed}
    rows = []
    for check in checks:
        rows.append([check.name, check.message])
        if check.hint:
            rows.append(["", f"hint: {check.hint}"])
    before = iter([paint(by_state[check.verdict], _COLOURS[check.verdict]) for check in checks])
    # Only where a check begins is there something in the first column.
    return [
        f"{next(before)} {line[2:]}" if line[2:3].strip() else line
        for line in table(rows, columns=columns, indent="  ")
    ]


def summary(checks: Sequence[Check]) -> str:
    """Say in one line how a checkup came out."""
    bad = sum(check.verdict is State.BAD for check in checks)
    warned = sum(check.verdict is State.WARN for check in checks)
    if not bad and not warned:
        return "all well"
    told = [_count(bad, "problem")] if bad else []
    told += [_count(warned, "warning")] if warned else []
    return f"{' and '.join(told)}{'' if bad else ', nothing that stops work'}"


def _count(number: int, what: str) -> str:
    return f"1 {what}" if number == 1 else f"{number} {what}s"
