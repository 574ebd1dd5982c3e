"""Texts by display width: cut, padded and made safe for a screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from stoker.core.display_width import cut, cut_middle, filled, on_screen, padded, text_width, wrapped

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)


@pytest.mark.parametrize(("text", "width"), [("desk", 4), ("模型", 4), ("e\u0301", 1), ("✓ ran", 5), ("", 0)])
def test_a_wide_character_takes_two_columns_and_a_combining_one_none(text: str, width: int) -> None:
    assert text_width(text) == width == cell_len(text)


@given(TEXTS, st.integers(0, 20), st.booleans())
def test_every_text_can_be_brought_to_every_width_without_control_characters(text, columns, is_ascii) -> None:
    safe = on_screen(text, is_ascii=is_ascii)
    assert "\x1b" not in safe
    assert not is_ascii or safe.isascii()
    assert text_width(cut(safe, columns)) <= columns
    assert text_width(cut_middle(safe, columns)) <= columns
    assert text_width(padded(safe, columns)) == columns


def test_of_a_long_name_the_middle_is_left_out() -> None:
    assert cut_middle("resnet-with-a-long-name/17", 13) == "resnet…ame/17"


def test_without_unicode_the_columns_stay() -> None:
    assert on_screen("模型 → 71 °C é …", is_ascii=True) == "???? > 71  C ? ~"


def test_joiners_and_selectors_of_emoji_are_left_out() -> None:
    assert on_screen("a\u200d\ufe0f\u202eb") == "a\\x202eb"


@given(TEXTS, st.integers(2, 20))
def test_wrapped_lines_fit_and_hold_every_word(text, columns) -> None:
    safe = on_screen(text)
    lines = wrapped(safe, columns)
    assert all(text_width(line) <= columns for line in lines)
    assert "".join("".join(lines).split(" ")) == "".join(safe.split(" "))


def test_a_text_is_filled_to_a_width_and_never_cut() -> None:
    assert filled("模型", 6) == "模型  "
    assert filled("a long name", 3) == "a long name"
