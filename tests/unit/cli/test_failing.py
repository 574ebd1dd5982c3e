from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stoker.cli.context import CliOutput
from stoker.cli.dispatch import error_lines, report
from stoker.core.errors import Diagnostic, Forbidden, InvalidArgs, NotFound


def test_an_error_is_one_line_and_a_hint() -> None:
    assert error_lines(NotFound("there is no x", hint="look again")) == ["stoker: there is no x", "hint: look again"]


def test_what_was_wrong_before_an_error_is_shown_after_it(capfd: pytest.CaptureFixture[str]) -> None:
    out = CliOutput(is_json=False, is_quiet=False)
    code = report(NotFound("there is no x"), out, debug=False, besides=Forbidden("the token is refused", hint="renew"))
    assert code == NotFound.exit_code
    assert capfd.readouterr().err == "stoker: there is no x\nstoker: the token is refused\nhint: renew\n"


def test_several_faults_have_a_line_each_and_a_single_one_is_the_line() -> None:
    two = InvalidArgs("2 errors", faults=(Diagnostic("a", "is bad"), Diagnostic("b", "is worse", "try c")))
    assert error_lines(two) == ["stoker: 2 errors", "  a: is bad", "  b: is worse (try c)"]
    one = InvalidArgs("a: is bad", faults=(Diagnostic("a", "is bad"),))
    assert error_lines(one) == ["stoker: a: is bad"]


def test_an_error_that_nobody_foresaw_is_a_bug_with_its_story_in_a_file(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = CliOutput(is_json=True, is_quiet=False)
    out.open()
    try:
        code = report(ZeroDivisionError("oh"), out, debug=False, crash_folder=lambda: str(tmp_path / "state"))
    finally:
        out.close()
    told = capfd.readouterr()
    (path,) = (tmp_path / "state").iterdir()
    assert code == 70
    assert told.err == f"stoker: internal error: ZeroDivisionError: oh\nhint: report it with {path}\n"
    assert json.loads(told.out)["data"] == {"report": str(path)}
    assert "ZeroDivisionError: oh" in path.read_text()


def test_a_report_among_temporary_files_is_new_and_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    victim.write_text("mine")
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    monkeypatch.setattr("time.strftime", lambda _form: "20260101-000000")
    # Another user foresees the name, and plants a link there.
    (shared / f"crash-20260101-000000-{os.getpid()}.txt").symlink_to(victim)
    (tmp_path / "file").write_text("")
    for _ in range(2):
        report(
            ZeroDivisionError("oh"),
            CliOutput(is_json=False, is_quiet=False),
            debug=False,
            crash_folder=lambda: str(tmp_path / "file" / "state"),
        )
    capfd.readouterr()
    made = [path for path in shared.iterdir() if not path.is_symlink()]
    assert victim.read_text() == "mine"
    assert len(made) == 2
    assert {path.stat().st_mode & 0o777 for path in made} == {0o600}


def test_a_reader_that_went_away_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert report(BrokenPipeError(), CliOutput(is_json=False, is_quiet=False), debug=True) == 0
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_has_its_code(capfd: pytest.CaptureFixture[str]) -> None:
    assert report(KeyboardInterrupt(), CliOutput(is_json=False, is_quiet=False), debug=False) == 130
    assert capfd.readouterr().err == "stoker: interrupted\n"


def test_a_thread_that_the_machine_refuses_is_no_bug(capfd: pytest.CaptureFixture[str]) -> None:
    assert report(RuntimeError("can't start new thread"), CliOutput(is_json=False, is_quiet=False), debug=False) == 45
    assert capfd.readouterr().err.startswith("stoker: could not start a thread\nhint: ")
