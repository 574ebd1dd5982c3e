from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.trainer.programs import FOLDER, Place

EVERY_CALL = """
import signal, threading
t.step(1, of=2, loss=1.0); t.eval(loss=1.0); t.heartbeat(); t.done(loss=1.0); t.failed("x")
open("a.pt", "w").close()
print(t.saved("a.pt"), t.resume(), t.params(), t.out(), t.scratch(), t.should_stop())
print(threading.active_count(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""

EVERYTHING = """
assert t.resume() is None and t.params() == {"lr": 0.1} and not t.should_stop()
for i in range(3):
    t.step(i, of=3, loss=float(i))
t.eval(acc=1)
with open(os.path.join(t.scratch(), "a.pt"), "wb") as file:
    file.write(b"weights")
assert t.saved(os.path.join(t.scratch(), "a.pt"))
t.done(loss=0.5)
"""


def interpreters() -> list[str]:
    """Every Python from 3.8 on that this machine has."""
    found = {}
    for minor in range(8, 20):
        kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"3.{minor}.*/bin/python"))
        python = str(kept[-1]) if kept else shutil.which(f"python3.{minor}")
        # A name on the path may be a stand-in for a version that nobody has chosen.
        if python and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            found[minor] = python
    return list(found.values()) or [sys.executable]


def test_elsewhere_every_call_does_nothing(place: Place) -> None:
    ran = place.run(EVERY_CALL, STOKER_CONTROL="", STOKER_RESUME="a.pt", STOKER_PARAMS='{"lr": 1}')
    assert (ran.status, ran.err) == (0, "")
    assert ran.out == "False None {} . . False\n1 True\n"
    assert not ran.said
    assert sorted(os.listdir(place.folder)) == ["a.pt", "out", "scratch"]


def test_importing_it_does_nothing_either(place: Place) -> None:
    ran = place.run("import threading; print(threading.active_count(), t.out(), t.params())")
    assert ran.out == f"1 {place.out} {{}}\n"
    assert not ran.said


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.py")))
def test_it_is_written_in_the_oldest_python_it_promises(file: str) -> None:
    ast.parse((FOLDER / file).read_text(encoding="utf-8"), feature_version=(3, 8))


def test_it_imports_nothing_but_the_standard_library() -> None:
    syntax = ast.parse((FOLDER / "stoker_trainer.py").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(syntax) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(syntax) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("python", interpreters())
def test_it_runs_under_every_python_of_this_machine(place: Place, python: str) -> None:
    ran = place.run(EVERYTHING, python=python, STOKER_PARAMS='{"lr": 0.1}')
    assert (ran.status, ran.err) == (0, "")
    assert ran.kinds[0] == "contract"
    assert ran.kinds[-2:] == ["saved", "done"]
    assert ran.values == [*((i, "loss", float(i)) for i in range(3)), (2, "eval/acc", 1.0), (2, "loss", 0.5)]
    assert place.index()[0]["size_bytes"] == 7


def test_parameters_come_as_they_were_given(place: Place) -> None:
    params = '{"lr":{"$float":"-inf"},"model":{"depth":3,"$$x":[{"$float":"nan"}]},"name":"a"}'
    ran = place.run("print(t.params())", STOKER_PARAMS=params)
    assert ran.out == "{'lr': -inf, 'model': {'depth': 3, '$x': [nan]}, 'name': 'a'}\n"


def test_parameters_that_are_none_are_none(place: Place) -> None:
    ran = place.run("""
        for text in ("", "{", "[1]", "null"):
            os.environ["STOKER_PARAMS"] = text
            print(t.params())
    """)
    assert ran.out == "{}\n" * 4


def test_resume_gives_what_is_there(place: Place) -> None:
    ran = place.run("""
        open("a.pt", "w").close()
        print(t.resume())
        for path in ("a.pt", "b.pt", ""):
            os.environ["STOKER_RESUME"] = path
            print(t.resume())
    """)
    assert ran.out == "None\na.pt\nNone\nNone\n"
