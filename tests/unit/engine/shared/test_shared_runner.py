"""A member whose shared process does not listen: whoever stops it never waits for that."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from stoker.core.retry import FailureCause
from stoker.engine.runners.shared.members import FORMAT, LONGEST_BYTES, framed
from stoker.engine.runners.shared.shared_runner import SharedProcessRunner, SharedProcessSettings, shared_process_name
from stoker.engine.runners.stage_runner import RunFolders, StageFailure, StageSuccess, Work
from stoker.host.identity import mine
from stoker.host.sockets import NamedSocket
from tests.unit.engine.together_stages import count

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every stage has a process of its own")
CLOCK = SystemClock()


@pytest.fixture
def settings(tmp_path: Path) -> SharedProcessSettings:
    return SharedProcessSettings(
        folder=str(tmp_path / "doors"),
        home=str(tmp_path),
        cwd=str(tmp_path),
        environment={},
        contain=None,
        version="test",
        linger_s=0.0,
    )


def work_of(tmp_path: Path, size: int) -> Work:
    folders = RunFolders(run_id="run", logs=str(tmp_path), metrics=str(tmp_path), scratch=str(tmp_path))
    args = {"member": "x" * size}
    return Work(node="m", stage=count, args=args, inputs={}, out=str(tmp_path), folders=folders, process_key="c")


@pytest.fixture
def deaf(tmp_path: Path, settings: SharedProcessSettings) -> Iterator[threading.Event]:
    """A company that greets whoever comes first, and reads nothing."""
    opened = NamedSocket(settings.folder, shared_process_name("c", (), settings)).open()
    assert opened is not None
    listener = opened.listener
    greeted, is_over = threading.Event(), threading.Event()
    words_fd = os.memfd_create("words")

    def greet() -> None:
        link, _ = listener.accept()
        who = {"identity": mine().to_dict(), "keeper": mine().to_dict()}
        socket.send_fds(link, [framed({"v": FORMAT, "hello": who})], [words_fd])
        greeted.set()
        is_over.wait(10)
        link.close()

    thread = threading.Thread(target=greet)
    thread.start()
    yield greeted
    is_over.set()
    thread.join()
    listener.close()
    os.close(words_fd)


@pytest.mark.timing
@pytest.mark.parametrize("kill", [False, True])
def test_one_that_is_joining_is_stopped_at_once(
    tmp_path: Path, settings: SharedProcessSettings, deaf: threading.Event, kill: bool
) -> None:
    member = SharedProcessRunner(lambda: settings, clock=CLOCK).attempt(work_of(tmp_path, LONGEST_BYTES // 2))
    ended: list[StageSuccess | StageFailure] = []
    thread = threading.Thread(target=lambda: ended.append(member.run()))
    thread.start()
    assert deaf.wait(10)
    # More than any buffer takes: it can't be through.
    CLOCK.sleep(0.05)
    began_s = CLOCK.monotonic_s()
    member.kill() if kill else member.ask_to_stop()
    assert CLOCK.monotonic_s() - began_s < 4
    thread.join(10)

    assert [one.cause for one in ended if isinstance(one, StageFailure)] == [FailureCause.CANCELLED]


def test_arguments_that_no_shared_process_takes_are_refused_before_anybody_is_asked(
    tmp_path: Path, settings: SharedProcessSettings
) -> None:
    ended = SharedProcessRunner(lambda: settings, clock=CLOCK).attempt(work_of(tmp_path, LONGEST_BYTES)).run()

    assert isinstance(ended, StageFailure)
    assert (ended.cause, ended.hint) == (FailureCause.INPUT, "run it with --solo")
    assert not os.path.exists(settings.folder)


def test_where_doors_may_not_be_nobody_tries_again(tmp_path: Path, settings: SharedProcessSettings) -> None:
    os.mkdir(settings.folder, 0o755)
    ended = SharedProcessRunner(lambda: settings, clock=CLOCK).attempt(work_of(tmp_path, 1)).run()

    assert isinstance(ended, StageFailure)
    assert (ended.cause, ended.error_code) == (FailureCause.INPUT, "no_permission")
