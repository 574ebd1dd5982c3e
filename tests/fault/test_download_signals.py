"""F65: a signal at every phase of a download, once and twice: the partial stays, the exit code says why, soon."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from tests.fault.download_lab import HALF, NAME, ONE
from tests.fault.download_parent import ONCE, Downloads
from tests.lengths import moments
from tests.servers import habits as bad
from tests.servers.faulty import Answer, Asked, FaultyServer, Habit, Line, Version, well

SOON_S = 10.0
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def _told(event: threading.Event):
    def act(line: Line) -> None:
        event.set()
        line.stall()

    return act


def _connecting(reached: threading.Event) -> Habit:
    return bad.before_head(_told(reached))


def _half_a_head(reached: threading.Event) -> Habit:
    return bad.before_head(b"HTTP/1.1 200 OK\r\nContent-", _told(reached))


def _in_the_body(reached: threading.Event) -> Habit:
    return bad.cut(HALF, _told(reached))


def _in_a_pause(reached: threading.Event) -> Habit:
    def busy(asked: Asked, version: Version) -> Answer:
        answer = bad.status(503, Retry_After="50")(asked, version)
        answer.body = (Line.drain, lambda line: reached.set())
        return answer

    return busy


PHASES = {"head": _connecting, "half-a-head": _half_a_head, "body": _in_the_body, "pause": _in_a_pause}


@pytest.mark.timing
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGTERM, 1)])
def test_a_signal_ends_a_download_soon_and_keeps_what_it_has(memory, phase, number, times):
    reached = threading.Event()
    with FaultyServer(ONE) as server, Downloads(server, memory / "out") as downloads:
        server.become(bad.breaking_off(1000))
        assert downloads.run(ONE, patience=ONCE) == 14
        server.become(PHASES[phase](reached))
        downloads.start(ONE, read_s=60)
        assert reached.wait(20)
        began_s = time.monotonic()
        for _ in range(times):
            downloads.kill(number)
        assert downloads.end() == CODES[number]
        assert time.monotonic() - began_s < SOON_S
        assert not downloads.path.exists()
        kept = downloads.partial_bytes()
        assert kept >= 1000
        assert ONE.data.startswith(downloads.partial.read_bytes())
        server.become(well)
        assert downloads.run(ONE) == 0
        assert [asked.first_byte for asked in server.gets()] == [kept]
        assert downloads.path.read_bytes() == ONE.data


@pytest.mark.timing
def test_a_signal_while_another_holds_the_lock_ends_the_wait(memory):
    reached = threading.Event()
    with (
        FaultyServer(ONE, _in_the_body(reached)) as server,
        Downloads(server, memory / "out") as first,
        Downloads(server, memory / "out") as second,
    ):
        first.start(ONE, read_s=60)
        assert reached.wait(20)
        second.start(ONE, patience={"lock_wait_s": 60})
        time.sleep(0.2)  # until it waits; there is nothing to see from outside
        began_s = time.monotonic()
        second.kill(signal.SIGINT)
        assert second.end() == 130
        assert time.monotonic() - began_s < SOON_S
        server.become(well)
        server.hang_up()
        assert first.end() == 0
        assert first.path.read_bytes() == ONE.data


def test_a_signal_at_every_step_leaves_all_or_nothing_and_can_be_repeated(memory):
    with FaultyServer(ONE) as server, Downloads(server, memory) as downloads:
        for moment in moments():
            downloads.into(memory / str(moment))
            code = downloads.run(ONE, at={"left": moment, "does": "SIGINT"})
            # Too late to stop is no harm: then the file is there, and it is said to be.
            assert code in (0, 130)
            assert downloads.path.exists() or code == 130
            assert not downloads.path.exists() or downloads.path.read_bytes() == ONE.data
            assert downloads.run(ONE) == 0
            assert downloads.path.read_bytes() == ONE.data
            assert sorted(path.name for path in downloads.folder.iterdir()) == [NAME]
            if code == 0 and moment > 40:
                break
