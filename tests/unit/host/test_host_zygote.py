from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from stoker.core.errors import LocalFile, ProcessLost
from stoker.host.identity import Liveness, is_alive
from stoker.host.processes import StopOutcome
from stoker.host.zygote import ForkedWork, Zygote
from tests.leaks import left_open, open_files
from tests.unit.host.real_processes import is_running, wait_until

ENTRIES = "tests.unit.host.forked_entries"
WAIT_S = 20.0


def start(cwd, preload=(ENTRIES,), **options) -> Zygote:
    return Zygote.start(sys.executable, preload, env=dict(os.environ), cwd=cwd, sys_path=sys.path, **options)


@pytest.fixture
def zygote(tmp_path) -> Iterator[Zygote]:
    with start(tmp_path, linger_s=0.1) as started:
        yield started


def run(zygote: Zygote, entry: str, request: dict | None = None, **options) -> tuple[list[dict], ForkedWork]:
    forked = zygote.fork(f"{ENTRIES}:{entry}", request or {}, **options)
    return list(forked.events()), forked


def test_a_request_goes_in_and_events_and_the_end_come_out(zygote):
    events, forked = run(zygote, "echo", {"a": [1, 2.5, None, "ü"], "loss": math.inf})
    assert events == [{"got": {"a": [1, 2.5, None, "ü"], "loss": math.inf}}]
    ended = forked.wait(WAIT_S)
    assert (ended.status, ended.signal) == (0, None)
    assert ended.max_rss_bytes > 1_000_000
    assert ended.cpu_s >= 0
    assert forked.has_ended
    assert forked.unreadable == []


def test_requests_and_events_larger_than_any_buffer_arrive_whole(zygote):
    text = "x" * 3_000_000
    events, _ = run(zygote, "echo", {"text": text})
    assert events == [{"got": {"text": text}}]


def test_a_child_stands_alone(zygote, tmp_path):
    (seen,), forked = run(zygote, "describe", cwd=tmp_path, env={"VARIABLE": "set"})
    pid = forked.identity.pid
    assert (seen["pid"], seen["session"], seen["group"]) == (pid, pid, pid)
    assert seen["fds"][:3] == [os.devnull] * 3
    assert len(seen["fds"]) == 4
    assert seen["fds"][3].startswith("pipe:")
    assert seen["stdin"] == ""
    assert seen["cwd"] == str(tmp_path)
    assert seen["variable"] == "set"
    assert seen["sys_path"] == sys.path
    assert seen["blocked"] == []
    assert seen["term"]


def test_one_child_changes_nothing_for_the_next(zygote):
    run(zygote, "describe", env={"VARIABLE": "set"})
    (seen,), _ = run(zygote, "describe")
    assert seen["variable"] is None


def test_output_is_appended_to_the_log(zygote, tmp_path):
    log = tmp_path / "log"
    log.write_text("before\n")
    _, forked = run(zygote, "talk", log_path=log)
    forked.wait(WAIT_S)
    assert sorted(log.read_text().splitlines()) == ["and by number", "before", "to the log", "without a newline"]


def test_a_log_that_cannot_be_written_is_said(zygote, tmp_path):
    with pytest.raises(LocalFile):
        run(zygote, "talk", log_path=tmp_path / "no" / "log")


def test_what_raises_ends_with_one_and_its_traceback_is_in_the_log(zygote, tmp_path):
    _, forked = run(zygote, "fail", {"why": "no such column"}, log_path=tmp_path / "log")
    assert forked.wait(WAIT_S).status == 1
    assert "ValueError: no such column" in (tmp_path / "log").read_text()


def test_an_entry_that_does_not_exist_is_in_the_log(zygote, tmp_path):
    _, forked = run(zygote, "nothing_of_that_name", log_path=tmp_path / "log")
    assert forked.wait(WAIT_S).status == 1
    assert "nothing_of_that_name" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(("code", "status"), [(3, 3), (None, 0), ("a message", 1)])
def test_a_child_may_choose_its_status(zygote, code, status):
    _, forked = run(zygote, "leave", {"code": code})
    assert forked.wait(WAIT_S).status == status


def test_a_child_that_is_killed_says_by_which_signal(zygote):
    events, forked = run(zygote, "die")
    assert events == []
    assert forked.wait(WAIT_S).signal == signal.SIGKILL


def test_lines_that_are_torn_or_not_objects_are_kept_apart(zygote):
    events, forked = run(zygote, "tear")
    assert events == [{"whole": True}]
    assert forked.unreadable == ["[1, 2]", '{"torn": ']


def test_threads_of_a_child_emit_whole_lines_and_are_waited_for(zygote):
    events, forked = run(zygote, "emit_from_threads", {"threads": 4, "lines": 50, "size": 20_000})
    assert len(events) == 200
    assert {(event["thread"], event["count"]) for event in events} == {(t, c) for t in range(4) for c in range(50)}
    assert all(event["text"] == "x" * 20_000 for event in events)
    assert forked.unreadable == []


def test_what_a_child_registers_for_its_exit_is_run(zygote):
    events, _ = run(zygote, "register_at_exit")
    assert events == [{"at": "work"}, {"at": "exit"}]


def test_reading_events_with_a_limit_returns_in_time(zygote):
    forked = zygote.fork(f"{ENTRIES}:wait_for_signal", {})
    assert forked.read_events(WAIT_S) == [{"pid": forked.identity.pid}]
    assert forked.read_events(0.01) == []
    assert not forked.has_no_more_events
    with pytest.raises(TimeoutError):
        forked.wait(0.01)
    os.kill(forked.identity.pid, signal.SIGKILL)
    assert forked.read_events(WAIT_S) == []
    assert forked.has_no_more_events


def test_preloaded_modules_are_there_before_the_work(tmp_path):
    with start(tmp_path, preload=["fractions", ENTRIES]) as zygote:
        assert zygote.wait_ready(WAIT_S).warnings == ()
        (seen,), _ = run(zygote, "describe")
        assert "fractions" in seen["preloaded"]


def test_the_zygote_itself_imports_nothing_heavy(zygote):
    (seen,), _ = run(zygote, "describe")
    assert not {"subprocess", "logging", "asyncio", "multiprocessing", "numpy", "tempfile"} & set(seen["preloaded"])


def test_a_module_that_cannot_be_preloaded_is_a_warning(tmp_path):
    (tmp_path / "breaks.py").write_text("import sys; sys.exit('it breaks')")
    with Zygote.start(
        sys.executable,
        ["no.such.module", "breaks", ENTRIES],
        env=dict(os.environ),
        cwd=tmp_path,
        sys_path=[str(tmp_path), *sys.path],
    ) as zygote:
        missing, broken = zygote.wait_ready(WAIT_S).warnings
        assert "no.such.module" in missing
        assert broken == "can't preload breaks: SystemExit: it breaks"
        events, _ = run(zygote, "echo", {"x": 1})
        assert events == [{"got": {"x": 1}}]


def test_a_thread_left_by_preloading_is_a_warning(tmp_path):
    with start(tmp_path, preload=["tests.unit.host.preload_with_thread"]) as zygote:
        (warning,) = zygote.wait_ready(WAIT_S).warnings
        assert "1 threads run beside the first" in warning


def test_a_module_in_the_current_folder_does_not_shadow_the_library(tmp_path):
    (tmp_path / "json.py").write_text("raise ImportError('the wrong one')")
    with start(tmp_path) as zygote:
        zygote.wait_ready(WAIT_S)


def test_many_threads_fork_at_once(zygote):
    results: dict[int, list[dict]] = {}

    def work(number: int) -> None:
        for count in range(8):
            events, forked = run(zygote, "echo", {"n": number * 100 + count})
            assert forked.wait(WAIT_S).is_success
            results[number * 100 + count] = events

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n * 100 + c: [{"got": {"n": n * 100 + c}}] for n in range(8) for c in range(8)}


def test_descriptors_do_not_pile_up(zygote):
    for _ in range(2):
        _, forked = run(zygote, "echo")
        forked.wait(WAIT_S)
    ours, theirs = open_files(), open_files(zygote.pid)
    for _ in range(20):
        _, forked = run(zygote, "echo")
        forked.wait(WAIT_S)
    zygote.fork(f"{ENTRIES}:echo", {}).wait(WAIT_S)  # its events are never read
    assert (left_open(ours), left_open(theirs, zygote.pid)) == (set(), set())


def test_a_request_that_is_not_json_harms_nobody_else(zygote):
    with pytest.raises(TypeError):
        run(zygote, "echo", {"x": object()})
    events, _ = run(zygote, "echo", {"x": 1})
    assert events == [{"got": {"x": 1}}]


def test_more_descriptors_than_travel_together_are_refused_and_harm_nobody_else(zygote):
    with pytest.raises(ValueError, match="more than the 24 that one message carries"):
        run(zygote, "echo", fds=[0] * 23)
    assert run(zygote, "echo", {"x": 1})[0] == [{"got": {"x": 1}}]


def test_a_child_is_stopped_politely(zygote):
    forked = zygote.fork(f"{ENTRIES}:end_politely", {})
    forked.read_events(WAIT_S)
    assert forked.stop() is StopOutcome.POLITE
    assert list(forked.events()) == [{"said": "goodbye"}]
    assert forked.wait(0).status == 7
    assert forked.stop() is StopOutcome.ALREADY_GONE


def test_a_child_that_ignores_the_request_is_stopped_firmly(zygote):
    forked = zygote.fork(f"{ENTRIES}:ignore_requests", {})
    forked.read_events(WAIT_S)
    assert forked.stop(grace_s=0.05) is StopOutcome.FIRM
    assert forked.wait(0).signal == signal.SIGKILL


def test_a_child_that_is_stopped_at_once_is_stopped(zygote):
    zygote.wait_ready(WAIT_S)
    for _ in range(20):
        forked = zygote.fork(f"{ENTRIES}:wait_for_signal", {})
        assert forked.stop() is StopOutcome.POLITE
        assert forked.wait(0).signal == signal.SIGTERM
    events, _ = run(zygote, "echo", {"x": 1})
    assert events == [{"got": {"x": 1}}]


def test_what_a_child_leaves_behind_is_ended_before_its_end_is_told(zygote):
    (seen,), forked = run(
        zygote,
        "leave_family",
        {"stays": False, "descendants": [[], ["ignores"], ["ignores", "grandchild"], ["ignores", "own_session"]]},
    )
    assert forked.wait(WAIT_S).is_success
    assert [pid for pid in seen["descendants"] if is_running(pid)] == []


def test_what_escaped_its_session_is_ended_once_nobody_else_can_own_it(zygote):
    other = zygote.fork(f"{ENTRIES}:wait_for_signal", {})
    other.read_events(WAIT_S)
    (seen,), forked = run(zygote, "leave_family", {"stays": False, "descendants": [["ignores", "own_session"]]})
    # Its pipe is still held open by the one that escaped; that delays neither events nor the end.
    assert forked.wait(WAIT_S).is_success
    (escaped,) = seen["descendants"]
    assert is_running(escaped)
    other.stop()
    wait_until(lambda: not is_running(escaped))


def test_closing_stops_polite_and_stubborn_children(tmp_path):
    zygote = start(tmp_path)
    polite = zygote.fork(f"{ENTRIES}:end_politely", {})
    stubborn = zygote.fork(
        f"{ENTRIES}:leave_family", {"stays": True, "descendants": [["ignores"], ["own_session", "ignores"]]}
    )
    polite.read_events(WAIT_S)
    (seen,) = stubborn.read_events(WAIT_S)
    pid = zygote.pid
    zygote.close(grace_s=0.2)
    assert polite.wait(0).status == 7
    assert list(polite.events()) == [{"said": "goodbye"}]
    assert stubborn.wait(0).signal == signal.SIGTERM
    assert [one for one in (pid, seen["pid"], *seen["descendants"]) if is_running(one)] == []


def test_closing_twice_is_fine_and_then_nothing_can_be_forked(tmp_path):
    zygote = start(tmp_path)
    zygote.close()
    zygote.close()
    with pytest.raises(ProcessLost, match="closed"):
        zygote.fork(f"{ENTRIES}:echo", {})


def test_closing_does_not_wait_for_imports(tmp_path):
    (tmp_path / "slow.py").write_text("import threading; threading.Event().wait(60)")
    zygote = Zygote.start(
        sys.executable, ["slow"], env=dict(os.environ), cwd=tmp_path, sys_path=[str(tmp_path), *sys.path]
    )
    with pytest.raises(TimeoutError):
        zygote.wait_ready(0.01)
    zygote.close()
    with pytest.raises(ProcessLost):
        zygote.wait_ready(0)


def test_an_interpreter_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(LocalFile, match="no-such-python"):
        Zygote.start("no-such-python", [], env={}, cwd=tmp_path, sys_path=sys.path)


def test_a_zygote_that_cannot_start_says_why(tmp_path):
    standard = [place for place in sys.path if "python3" in place and "site-packages" not in place]
    zygote = Zygote.start(sys.executable, [], env=dict(os.environ), cwd=tmp_path, sys_path=standard)
    try:
        with pytest.raises(ProcessLost, match="No module named 'stoker'"):
            zygote.fork(f"{ENTRIES}:echo", {})
        with pytest.raises(ProcessLost, match="No module named 'stoker'"):
            zygote.wait_ready(WAIT_S)
    finally:
        zygote.close()


def test_the_identity_of_a_child_is_its_own(zygote):
    forked = zygote.fork(f"{ENTRIES}:wait_for_signal", {})
    assert is_alive(forked.identity) is Liveness.ALIVE
    forked.stop()
    assert is_alive(forked.identity) is Liveness.GONE


def test_descriptors_are_handed_to_one_child_and_to_no_other(zygote):
    read_fd, write_fd = os.pipe()
    try:
        _, forked = run(zygote, "write_to_given", {"text": "hello"}, fds=[write_fd])
        assert forked.wait(WAIT_S).status == 0
        (seen,), _ = run(zygote, "describe")
        assert len(seen["fds"]) == 4
        os.close(write_fd)
        assert os.read(read_fd, 100) == b"hello"
        # Nobody else holds it open: not the zygote either.
        assert os.read(read_fd, 100) == b""
    finally:
        os.close(read_fd)


def test_children_are_signalled_by_their_parent_and_others_are_not(zygote):
    first, second = (zygote.fork(f"{ENTRIES}:hang", {}) for _ in range(2))
    zygote.signal([first], signal.SIGKILL)
    assert first.wait(WAIT_S).signal == signal.SIGKILL
    assert not second.has_ended
    # Somebody who has ended is left alone.
    zygote.signal([first, second], signal.SIGTERM)
    assert second.wait(WAIT_S).signal == signal.SIGTERM
