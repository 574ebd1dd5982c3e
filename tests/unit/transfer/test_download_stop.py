from __future__ import annotations

import signal
import threading

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import Cancelled, Terminated
from stoker.transfer.download.types import DownloadStop


def test_nothing_happens_until_somebody_asks():
    stop = DownloadStop()
    stop.check()
    with stop.cutting(lambda: pytest.fail("cut without being asked")):
        stop.check()
    clock = FakeClock()
    stop.sleep(5.0, clock)
    assert clock.monotonic_s() == pytest.approx(5.0)


def test_the_first_error_is_the_one_that_is_raised():
    stop = DownloadStop()
    stop.ask(Cancelled("one"))
    stop.ask(Terminated("two"))
    with pytest.raises(Cancelled, match="one"):
        stop.check()


def test_asking_cuts_what_is_under_way():
    stop, cuts = DownloadStop(), []
    with stop.cutting(lambda: cuts.append("a")), stop.cutting(lambda: cuts.append("b")):
        stop.ask(Cancelled("now"))
    assert sorted(cuts) == ["a", "b"]
    stop.ask(Cancelled("again"))
    assert len(cuts) == 2


def test_what_begins_after_asking_does_not_begin():
    stop = DownloadStop()
    stop.ask(Cancelled("now"))
    with pytest.raises(Cancelled), stop.cutting(lambda: None):
        pytest.fail("it began")


def test_a_cut_that_fails_does_not_spare_the_others():
    stop, cuts = DownloadStop(), []

    def fail():
        raise RuntimeError

    with stop.cutting(fail), stop.cutting(lambda: cuts.append("b")):
        stop.ask(Cancelled("now"))
    assert cuts == ["b"]


def test_a_pause_ends_soon_after_asking():
    stop = DownloadStop()

    class AskingClock(FakeClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            if self.monotonic_s() > 1.0:
                stop.ask(Cancelled("now"))

    clock = AskingClock()
    with pytest.raises(Cancelled):
        stop.sleep(3600.0, clock)
    assert clock.monotonic_s() < 1.5


def test_a_signal_may_ask_whatever_its_thread_is_doing():
    stop, cut = DownloadStop(), threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: stop.ask(Terminated("signal")))
    try:
        with stop.cutting(cut.set):
            signal.raise_signal(signal.SIGUSR1)
            assert cut.is_set()
    finally:
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(Terminated):
        stop.check()
