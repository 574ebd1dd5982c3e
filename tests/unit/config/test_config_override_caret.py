"""Carets under the part that is meant."""

from __future__ import annotations

import pytest

from stoker.config.positions import ConfigLayer, ValueOrigin, caret_lines, fault_at


@pytest.mark.parametrize(
    ("line", "column", "width", "shown"),
    [
        ("lr=[1,2", 8, 1, "lr=[1,2\n       ^"),
        ("lr: abc", 5, 3, "lr: abc\n    ^^^"),
        ("abc", 1, 10, "abc\n^^^"),
        ("abc", 9, 1, "abc\n   ^"),
        ("", 1, 1, "\n^"),
        ("\tx: 1", 2, 1, " x: 1\n ^"),
        ("a\x1bb", 3, 1, "a�b\n  ^"),
        ("日本=x", 3, 1, "日本=x\n    ^"),
        ("e\u0301=x", 3, 1, "e\u0301=x\n ^"),
    ],
)
def test_carets_stand_under_the_columns(line: str, column: int, width: int, shown: str) -> None:
    assert caret_lines(line, column, width) == shown


def test_a_long_line_is_cut_around_the_caret() -> None:
    line = "a" * 500 + "X" + "b" * 500
    text, carets = caret_lines(line, 501).split("\n")
    assert text[carets.index("^")] == "X"
    assert len(text) <= 102
    assert text.startswith("…")
    assert text.endswith("…")


def test_a_fault_says_place_key_and_line() -> None:
    origin = ValueOrigin(layer=ConfigLayer.FILE, where="base.yaml", line=3, column=5, text="lr: abc")
    fault = fault_at(origin, "is not a number", hint="write 0.1", key="lr", width=3)
    assert str(fault) == "base.yaml:3:5: lr: is not a number (write 0.1)"
    assert fault.shown == "lr: abc\n    ^^^"
    assert fault.to_dict() == {
        "where": "base.yaml:3:5: lr", "message": "is not a number", "hint": "write 0.1", "shown": "lr: abc\n    ^^^",
    }  # fmt: skip


def test_a_place_without_a_line_shows_none() -> None:
    fault = fault_at(ValueOrigin(layer=ConfigLayer.ENVIRONMENT, where="STOKER__lr"), "is not a number")
    assert (fault.where, fault.shown) == ("STOKER__lr", "")
