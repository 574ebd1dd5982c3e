from __future__ import annotations

import pytest

from stoker.devices.checkup import Check, CheckStatus
from stoker.views.device_lines import check_lines, summary
from stoker.views.text_tables import ASCII, UNICODE, Signs

CHECKS = (
    Check(name="cpu", verdict=CheckStatus.OK, message="2 cores"),
    Check(name="clock", verdict=CheckStatus.WARN, message="unknown", hint="compare it"),
    Check(name="disk", verdict=CheckStatus.BAD, message="read-only", hint="STOKER_HOME names another place"),
)


def plain(text: str, colour: str) -> str:
    return text


@pytest.mark.parametrize(
    ("signs", "shown"), [(UNICODE, ("✓", "!", "✗")), (ASCII, ("+", "!", "x"))], ids=["unicode", "ascii"]
)
def test_each_check_has_a_sign_and_its_hint_below(signs: Signs, shown: tuple[str, str, str]) -> None:
    ok, warned, bad = shown
    assert check_lines(CHECKS, signs=signs, columns=0, paint=plain) == [
        f"{ok} cpu    2 cores",
        f"{warned} clock  unknown",
        "         hint: compare it",
        f"{bad} disk   read-only",
        "         hint: STOKER_HOME names another place",
    ]


def test_long_lines_are_wrapped_below_their_own_beginning() -> None:
    long = Check(name="cuda 0", verdict=CheckStatus.OK, message="word " * 12, hint="more " * 12)
    lines = check_lines([long], signs=UNICODE, columns=44, paint=plain)
    assert lines[0].startswith("✓ cuda 0  word")
    assert all(line.startswith(" " * 10) for line in lines[1:])
    assert max(map(len, lines)) <= 44
    assert len(lines) == 4


def test_only_the_sign_is_painted_and_columns_stay_in_line() -> None:
    painted = check_lines(CHECKS, signs=UNICODE, columns=0, paint=lambda text, colour: f"<{colour}>{text}</>")
    assert painted[0] == "<green>✓</> cpu    2 cores"
    assert painted[1] == "<yellow>!</> clock  unknown"
    assert painted[3] == "<red>✗</> disk   read-only"


@pytest.mark.parametrize(
    ("checks", "told"),
    [
        (CHECKS[:1], "no problems"),
        (CHECKS[:2], "1 warning, no problems"),
        ((*CHECKS[:2], CHECKS[1]), "2 warnings, no problems"),
        (CHECKS, "1 problem and 1 warning"),
        ((CHECKS[2],) * 2, "2 problems"),
    ],
    ids=["well", "one", "two", "both", "bad"],
)
def test_one_line_says_how_it_came_out(checks: tuple[Check, ...], told: str) -> None:
    assert summary(checks) == told
