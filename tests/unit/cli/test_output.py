from __future__ import annotations

import os

import pytest

from stoker.cli.context import CliOutput


def test_in_json_mode_nothing_else_reaches_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    out = CliOutput(is_json=True, is_quiet=False)
    out.open()
    os.write(1, b"written\n")
    out.line("for people")
    out.object({"value": float("nan")})
    out.close()
    os.write(1, b"afterwards\n")
    told = capfd.readouterr()
    assert told.out == '{"value":{"$float":"nan"}}\nafterwards\n'
    assert told.err == "written\n"


def test_outside_json_mode_there_are_no_objects_and_off_a_terminal_no_colours(
    capfd: pytest.CaptureFixture[str],
) -> None:
    out = CliOutput(is_json=False, is_quiet=True)
    out.open()
    out.object({"value": 1})
    out.line(out.paint("green", "green"))
    out.note("not for the quiet")
    out.complain("for everybody")
    out.close()
    assert capfd.readouterr() == ("green\n", "for everybody\n")
