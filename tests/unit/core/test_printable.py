from __future__ import annotations

import pytest

from stoker.core.jsontext import dumps, loads
from stoker.core.text import counted, first_line, json_printable, one_line, outside, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loss 0.5\tok\n", "loss 0.5\tok\n"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
        ("\x1b[32m✓\x1b[0m done", "\x1b[32m✓\x1b[0m done"),
        ("\x9b31m", "\\x9b31m"),
        ("a\rb\x00c", "a\\x0db\\x00c"),
        ("evil\u202etxt", "evil\\x202etxt"),
        ("größe 大", "größe 大"),
    ],
)
def test_codes_are_shown_and_not_obeyed(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_line_has_no_breaks_and_an_end() -> None:
    assert one_line("a\n  b\x1bc") == "a b c"
    assert one_line("abcdef", 4) == "abc…"


def test_what_others_chose_has_no_colours_and_no_breaks() -> None:
    assert outside("a\x1b[31mred\x1b[0m") == "a\\x1b[31mred\\x1b[0m"
    assert outside("evil\u202etxt\nb\x9b1m") == "evil\\x202etxt\\x0ab\\x9b1m"
    assert outside("größe\t大") == "größe\t大"


def test_a_line_of_json_stays_the_same_to_programs_and_says_nothing_to_terminals() -> None:
    line = dumps({"name": "größe\x9b1m\u202etxt\x7f", "tab": "a\tb"})
    assert json_printable(line).isprintable()
    assert loads(json_printable(line)) == loads(line)
    assert "größe" in json_printable(line)


def test_of_an_error_the_first_line_is_told_or_what_it_is_called():
    assert first_line(ValueError("\n first\nsecond")) == "first"
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_a_number_has_its_noun_in_singular_or_plural():
    assert counted(1, "job") == "1 job"
    assert counted(0, "job") == "0 jobs"
    assert counted(1204, "job") == "1,204 jobs"
    assert counted(2, "job waits", "jobs wait") == "2 jobs wait"
