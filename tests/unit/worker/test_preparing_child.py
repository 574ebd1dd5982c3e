"""The process that brings what a job needs, as its keeper sees it; and what its keeper makes of that."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from stoker.core.clock import SystemClock
from stoker.host.identity import read_row
from stoker.worker.preparation.input_check import PresentInputs
from stoker.worker.preparation.prepare_child import (
    InputPreparer,
    PrepareLine,
    PreparingProgram,
    bring_by_child,
)
from stoker.worker.worker_state import StartRefusal
from tests.unit.worker.benches import MachineAlone, wanting

CLOCK = SystemClock()
SAY = "import json,os,sys,time\ndef say(**told): print(json.dumps(told), flush=True)\nticket=sys.stdin.readline()\n"


def program(code: str, folder: Path) -> PreparingProgram:
    return PreparingProgram(
        argv=(sys.executable, "-c", SAY + code),
        folder=str(folder),
        environment=lambda: {"PATH": os.defpath},
        clock=CLOCK,
    )


def brought(
    code: str, folder: Path, stop: threading.Event | None = None
) -> tuple[PrepareLine | None, list[PrepareLine]]:
    heard: list[PrepareLine] = []
    ended = bring_by_child(program(code, folder), b'{"job":1}\n', stop or threading.Event(), heard.append)
    return ended, heard


def test_its_lines_are_heard_and_its_last_word_is_given(tmp_path: Path):
    code = "say(says='copies DATA 34 %', count=7); print('nonsense'); say(end='ready', verified=['env:DATA'])"
    ended, heard = brought(code, tmp_path)
    assert ended == PrepareLine(end="ready", verified=("env:DATA",))
    assert heard == [PrepareLine(says="copies DATA 34 %", count=7)]


def test_one_that_is_killed_is_started_again_as_long_as_it_got_on(tmp_path: Path):
    count = tmp_path / "starts"
    code = (
        f"starts = len(open({str(count)!r}, 'a+').read()); n = os.path.getsize({str(count)!r})\n"
        f"open({str(count)!r}, 'a').write('x')\n"
        "say(says='copies', count=5)\n"
        "if n < 2: os.kill(os.getpid(), 9)\n"
        "say(end='ready')"
    )
    ended, heard = brought(code, tmp_path)
    assert ended == PrepareLine(end="ready")
    assert count.read_text() == "xxx"
    assert [told.count for told in heard] == [5, 10, 15], "counts go on"


def test_one_that_never_gets_on_is_given_up_with_its_last_words(tmp_path: Path):
    ended, _ = brought("sys.exit('no such module')", tmp_path)
    assert ended is not None
    assert (ended.end, ended.reason, ended.lasts) == ("refused", "preparing", False)
    assert "no such module" in ended.message


def test_a_stop_ends_it_and_whatever_it_started(tmp_path: Path):
    stop, heard = threading.Event(), list[PrepareLine]()
    code = (
        "import subprocess; inner = subprocess.Popen(['sleep', '600'])\n"
        "say(says=str(inner.pid), count=1)\n"
        "signal = __import__('signal'); signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "time.sleep(600)"
    )

    def heed(told: PrepareLine) -> None:
        heard.append(told)
        stop.set()

    assert bring_by_child(program(code, tmp_path), b"{}\n", stop, heed) is None
    until_s = time.monotonic() + 20
    while (row := read_row(int(heard[0].says))) is not None and not row.is_gone:
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_what_is_refused_is_told_with_its_reason_and_what_came_is_looked_at_again(tmp_path: Path):
    machine = MachineAlone(tmp_path / "machine")
    try:
        wanted = wanting(code_tree="c" * 64)

        def preparing(code: str) -> InputPreparer:
            return InputPreparer(
                here=machine.here, program=program(code, tmp_path), ticket=lambda _, user: b"{}\n", clock=CLOCK
            )

        never = threading.Event()
        assert isinstance(preparing("").prepare(wanting(), never, lambda _: None), PresentInputs)
        refused = preparing("say(end='refused', reason='data', message='nobody has it', lasts=True)")
        answer = refused.prepare(wanted, never, lambda _: None)
        assert answer == StartRefusal(reason="data", message="nobody has it", lasts=True)
        liar = preparing("say(count=1); say(end='ready')").prepare(wanted, never, lambda _: None)
        assert isinstance(liar, StartRefusal)
        assert liar.reason == "preparing"
        stopped = threading.Event()
        stopped.set()
        assert preparing("time.sleep(600)").prepare(wanted, stopped, lambda _: None) is None
    finally:
        MachineAlone.close_all()


def test_a_line_survives_its_way_and_what_is_none_is_no_line():
    told = PrepareLine(says="a\nb", line="x", count=3, verified=("env:A",))
    assert PrepareLine.from_line(told.to_line()) == PrepareLine(says="a b", line="x", count=3, verified=("env:A",))
    assert [PrepareLine.from_line(line) for line in (b"", b"[1]", b'{"nobody": 1}', b"\xff")] == [None] * 4
