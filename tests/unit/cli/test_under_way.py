from __future__ import annotations

import json
import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from stoker.cli import dispatch, screens
from stoker.cli.screens import Amount, ElapsedSeconds, busy, under_way
from stoker.core.clock import FakeClock
from stoker.core.errors import Cancelled, StokerError, Terminated


def a_call() -> Any:
    out = SimpleNamespace(is_terminal=False, is_quiet=False, is_json=False, is_unicode=True, speaks=lambda: None)
    return SimpleNamespace(out=out, parts=SimpleNamespace(clock=FakeClock()))


def test_how_far_it_is_becomes_one_line_with_rate_and_time_left() -> None:
    amount = Amount("putting data", 4 << 20, 100.0, is_unicode=False)
    assert amount.lines(100.1, 0.0) == ["putting data  ....................  0 B of 4.0 MiB"]
    amount.heed(1 << 20)
    assert amount.lines(102.0, 0.0) == [
        "putting data  #####...............  1.0 MiB of 4.0 MiB  512.0 KiB/s  6.0s left"
    ]


def test_work_that_lasts_for_a_time_shows_how_much_of_it_has_passed() -> None:
    elapsed = ElapsedSeconds("torturing", 180, 100.0, is_unicode=False, hint="")
    elapsed.reach(45)
    assert elapsed.lines(145.0, 0.0) == ["torturing  #####...............  45s of 3m00s  2m15s left"]


def test_what_has_no_known_end_shows_what_is_done() -> None:
    amount = Amount("packing", None, 0.0, is_unicode=True)
    amount.heed(2048)
    assert amount.lines(1.0, 0.0) == ["packing  2.0 KiB  2.0 KiB/s"]


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, Cancelled), (signal.SIGTERM, Terminated), (signal.SIGHUP, Terminated)]
)
def test_a_signal_ends_the_work_and_passes_through_whoever_catches_our_errors(
    number: signal.Signals, error: type[StokerError]
) -> None:
    before = signal.getsignal(number)
    caught: list[StokerError] = []

    def work() -> None:
        with under_way(a_call(), "x", None) as amount:
            try:
                os.kill(os.getpid(), number)
                amount.heed(1)
            except StokerError as wrong:
                caught.append(wrong)

    with pytest.raises(error, match=r"interrupted|terminated|terminal closed") as ended:
        work()
    assert "run the same command again" in ended.value.hint
    assert caught == []
    assert signal.getsignal(number) is before


def test_a_signal_does_not_disturb_what_is_cleared_up_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work ends at its next byte, not in the middle of whatever the program does; a second Ctrl-C waits, too."""
    monkeypatch.setattr(dispatch, "rows", list)
    cleared: list[str] = []

    def work() -> None:
        with under_way(a_call(), "x", None) as amount:
            try:
                os.kill(os.getpid(), signal.SIGINT)
                cleared.append("still at work")
                amount.heed(1)
            finally:
                os.kill(os.getpid(), signal.SIGINT)
                cleared.append("all of it")

    with pytest.raises(Cancelled):
        work()
    assert cleared == ["still at work", "all of it"]


def test_work_that_is_done_before_it_could_be_stopped_is_done() -> None:
    with under_way(a_call(), "x", None) as amount:
        amount.heed(1)
        os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_that_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with under_way(a_call(), "x", None):
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("is_json", [False, True])
def test_in_a_pipe_progress_is_written_to_standard_error(is_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "HEARTBEAT_S", 0.001)
    call, written = a_call(), threading.Event()
    lines: list[str] = []

    def note(line: str) -> None:
        lines.append(line)
        written.set()

    call.out.is_json, call.out.write_aside = is_json, note
    with under_way(call, "putting data", 4096) as amount:
        amount.heed(1024)
        call.parts.clock.advance(2.0)
        written.clear()
        call.parts.clock.advance(1.0)
        amount.heed(1024)
        assert written.wait(30.0)
    if is_json:
        event = json.loads(lines[-1])
        assert (event["kind"], event["what"], event["total"], event["unit"]) == (
            "progress",
            "putting data",
            4096,
            "bytes",
        )
    else:
        assert lines[-1].startswith("putting data  ")
        assert "of 4.0 KiB" in lines[-1]


def test_work_of_unknown_length_shows_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screens, "HEARTBEAT_S", 0.001)
    call, written = a_call(), threading.Event()
    call.out.write_aside = lambda line: written.set() if line.startswith("measuring  ") else None
    with busy(call, "measuring"):
        assert written.wait(30.0)
