"""Gangs of real processes, with gloo: those that fail, hang, or are no longer wanted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.core.errors import Cancelled, GangClosed, RankFailed, RankTimeout
from stoker.gang import Buffer, Gang, RankConfig
from stoker.gang.mailbox import Phase
from stoker.gang.starters import warm_here
from tests.leaks import left_open, open_files
from tests.others import suspend
from tests.unit.gang import gang_functions as functions
from tests.unit.host.real_processes import is_running, wait_until

ON_PHASE = "tests.unit.gang.gang_functions:fault_in_phase"


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """Import torch before anybody's time runs."""
    warm_here().wait_ready()


def ranks(count=2) -> list[RankConfig]:
    return [RankConfig(device_id) for device_id in range(count)]


def left_of(zygote_pid: int) -> list[int]:
    """Whoever the zygote still has as a child."""
    text = Path(f"/proc/{zygote_pid}/task/{zygote_pid}/children").read_text(encoding="ascii")
    return [int(pid) for pid in text.split()]


def nobody_is_left() -> bool:
    zygote = warm_here()._zygote
    return zygote is not None and left_of(zygote.pid) == []


SAID = {
    "raise": "ValueError: no such column",
    "exit": "ended without a report: exit status 3",
    "sys.exit": "SystemExit: 3",
    "kill": "ended without a report: signal 9 (SIGKILL)",
    "segv": "ended without a report: signal 11 (SIGSEGV)",
}


@pytest.mark.parametrize("how", SAID)
def test_in_a_call_the_first_cause_is_named_and_nothing_is_left(how):
    with Gang(ranks(3), grace_s=1.0) as up:
        pids = [context.pid for context in up.contexts]
        with pytest.raises(RankFailed) as raised:
            up.run(functions.fail_on, 1, how)
        error = raised.value
        assert not any(is_running(pid) for pid in pids)
        assert nobody_is_left()
        with pytest.raises(GangClosed, match="rank 1"):
            up.run(functions.echo)
    assert (error.rank, error.phase) == (1, "RUN")
    assert str(error).startswith("rank 1 (device 1) failed in RUN after ")
    assert str(error).endswith(SAID[how])
    told = {error.rank, *(one["rank"] for one in (*error.collateral, *error.pending))}
    assert told == {0, 1, 2}
    if how == "raise":
        assert 'raise ValueError("no such column")' in error.traceback
        assert "stoker/gang/rank.py" not in error.traceback.replace(os.sep, "/")
    if how == "segv":
        assert "Segmentation fault" in error.crash
        assert "string_at" in error.crash


@pytest.mark.parametrize("phase", ["FORKED", "DEVICE", "STORE", "COMM", "WINDOW", "STAGING"])
@pytest.mark.parametrize("how", ["raise", "kill"])
def test_at_bring_up_the_rank_and_the_phase_are_named_and_nothing_is_left(monkeypatch, phase, how):
    monkeypatch.setenv(functions.VICTIM, f"1 {phase} {how}")
    up = Gang(ranks(2), on_phase=ON_PHASE)
    with pytest.raises(RankFailed) as raised:
        up.bring_up()
    error = raised.value
    assert str(error).startswith(f"rank 1 (device 1) failed in {phase} after ")
    assert str(error).endswith(SAID[how])
    assert nobody_is_left()
    with pytest.raises(GangClosed):
        up.bring_up()
    up.close()


def test_after_a_failure_a_new_gang_starts_clean(monkeypatch):
    monkeypatch.setenv(functions.VICTIM, "0 COMM exit")
    with pytest.raises(RankFailed, match="exit status 3"):
        Gang(ranks(2), on_phase=ON_PHASE).bring_up()
    with Gang(ranks(2)) as up:
        assert up.run(functions.add, 1) == [3.0] * 2


@pytest.mark.parametrize(("phase", "others"), [("STORE", "COMM"), ("COMM", "COMM")])
def test_a_rank_that_hangs_at_bring_up_is_named_with_where_it_is(monkeypatch, phase, others):
    monkeypatch.setenv(functions.VICTIM, f"1 {phase} hang")
    with pytest.raises(RankTimeout) as raised:
        # From when a rank got there: however long it takes ranks to begin, they all have.
        Gang(ranks(3), on_phase=ON_PHASE, phase_limits_s={Phase[phase]: 0.4}).bring_up()
    error = raised.value
    assert re.fullmatch(rf"rank 1 \(device 1\) is silent in {phase} after .* s; 0 of 3 are ready", str(error))
    assert "in hang" in error.crash
    assert [(one["rank"], one["phase"]) for one in error.pending] == [(0, others), (2, others)]
    assert all("distributed" in one["where"] for one in error.pending)
    assert nobody_is_left()


def test_a_limit_of_a_phase_ends_the_wait_sooner(monkeypatch):
    monkeypatch.setenv(functions.VICTIM, "0 WINDOW hang")
    with pytest.raises(RankTimeout, match=r"rank 0 \(device 0\) is silent in WINDOW after"):
        Gang(ranks(2), on_phase=ON_PHASE, phase_limits_s={Phase.WINDOW: 0.4}).bring_up()


def test_a_rank_that_hangs_in_a_call_is_named():
    with Gang(ranks(2)) as up, pytest.raises(RankTimeout, match=r"rank 1 .* is silent in RUN after \d\.\d s; 0 of 2"):
        up.run(functions.fail_on, 1, "hang", timeout_s=0.4)


def test_a_result_that_cannot_travel_is_a_failure_of_the_call():
    with Gang(ranks(1)) as up, pytest.raises(RankFailed, match=r"failed in RUN .*pickle"):
        up.run(functions.unpicklable)


def test_the_real_error_is_the_cause_even_if_the_group_was_taken_apart_before_it_got_out():
    with Gang(ranks(2)) as up, pytest.raises(RankFailed, match=r"rank 1 .* ValueError: the real one"):
        up.run(functions.tear_down_then_fail, 1)


def test_what_could_not_be_stored_at_the_close_is_an_error():
    up = Gang([RankConfig(0, [Buffer("x", 8, store_to_host=True)])])
    up.bring_up()
    up.run(functions.spoil_the_end)
    with pytest.raises(RankFailed, match=r"rank 0 .* failed in READY after .*: ValueError"):
        up.close()
    assert nobody_is_left()
    up.close()


def test_what_a_rank_has_started_ends_with_it(tmp_path):
    with Gang(ranks(2)) as up, pytest.raises(RankFailed, match="no such column"):
        up.run(functions.leave_a_child_and_fail, str(tmp_path / "pids"))
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    assert not any(is_running(pid) for pid in pids)


def test_a_rank_that_does_not_listen_is_made_to_end():
    with Gang(ranks(2), grace_s=0.1) as up, pytest.raises(RankFailed, match="no such column"):
        up.run(functions.ignore_requests_to_end_and_fail)
    assert nobody_is_left()


def test_a_rank_that_dies_between_calls_is_noticed_at_the_next():
    with Gang(ranks(2)) as up:
        os.kill(up.contexts[1].pid, signal.SIGKILL)
        with pytest.raises(RankFailed, match=r"rank 1 .* failed in READY .*signal 9"):
            up.run(functions.echo)


def when_there(path: Path, act: Callable[[], object]) -> threading.Thread:
    """Do something from another thread once a file is there."""
    acting = threading.Thread(target=lambda: (wait_until(path.exists), act()))
    acting.start()
    return acting


@pytest.mark.parametrize("way", ["cancel", "close"])
def test_a_call_can_be_cancelled_from_another_thread(tmp_path, way):
    with Gang(ranks(2)) as up:
        pids = [context.pid for context in up.contexts]
        ending = when_there(tmp_path / "begun", getattr(up, way))
        with pytest.raises(Cancelled):
            up.run(functions.say_so_and_hang, str(tmp_path / "begun"))
        ending.join()
        assert not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.01, 0.03, 0.06])
def test_a_bring_up_can_be_cancelled_at_any_moment(delay_s):
    up = Gang(ranks(2))
    timer = threading.Timer(delay_s, up.cancel)
    timer.start()
    try:
        up.bring_up()
        timer.join()
        with pytest.raises(Cancelled):
            up.run(functions.hang)
    except Cancelled:
        timer.join()
    assert nobody_is_left()


def test_an_interrupt_in_the_middle_of_a_call_leaves_nobody(tmp_path):
    with Gang(ranks(2)) as up:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        main = threading.main_thread().ident
        assert main is not None
        interrupting = when_there(tmp_path / "begun", lambda: signal.pthread_kill(main, signal.SIGALRM))
        try:
            with pytest.raises(KeyboardInterrupt):
                up.run(functions.say_so_and_hang, str(tmp_path / "begun"))
        finally:
            interrupting.join()
            signal.signal(signal.SIGALRM, before)
        assert nobody_is_left()


def test_failing_gangs_leave_no_open_files(monkeypatch):
    monkeypatch.setenv(functions.VICTIM, "1 COMM raise")

    def fail():
        with pytest.raises(RankFailed):
            Gang(ranks(2), on_phase=ON_PHASE).bring_up()

    fail()
    before = open_files()
    for _ in range(3):
        fail()
    assert left_open(before) == set()


@pytest.mark.slow
def test_a_killed_owner_takes_everybody_along():
    script = textwrap.dedent(
        """
        import os, signal, sys
        from stoker.gang import Gang, RankConfig
        up = Gang([RankConfig(0), RankConfig(1)])
        pids = [context.pid for context in up.bring_up()]
        from stoker.gang.owner import warm_here
        print(*pids, warm_here()._zygote.pid, flush=True)
        signal.pause()
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 3
        assert all(is_running(pid) for pid in pids)
        # The zygote first stopped, so that only the life lines can tell.
        suspend(pids[2])
        owner.kill()
        wait_until(lambda: not any(is_running(pid) for pid in pids[:2]))
        os.kill(pids[2], signal.SIGCONT)
        wait_until(lambda: not is_running(pids[2]))


@pytest.mark.slow
def test_a_function_of_the_main_script_works(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent(
            """
            from stoker.gang import Gang, RankConfig, this_rank

            def work(number):
                return number + this_rank().rank

            if __name__ == "__main__":
                with Gang([RankConfig(0), RankConfig(1)]) as gang:
                    print(gang.run(work, 5), gang.run(work, 6))
            """
        )
    )
    assert subprocess.check_output([sys.executable, str(script)], text=True) == "[5, 6] [6, 7]\n"
