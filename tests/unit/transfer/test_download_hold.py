from __future__ import annotations

import errno
import fcntl
import os

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import Cancelled, LocalFile, LockHeld
from stoker.core.frozen import changed
from stoker.host.folders import AnchoredFolder
from stoker.host.identity import mine, of_pid
from stoker.host.locks import FileLock
from stoker.transfer.download.download_events import DownloadEvents
from stoker.transfer.download.file_lock import WATCH_S, PartialFileLock, sweep_lock
from stoker.transfer.download.partial import Sidecar, dump_sidecar
from stoker.transfer.download.types import DownloadRequest, DownloadStop

GONE = changed(mine(), pid=(1 << 22) - 1, start_ticks=1)
ELSEWHERE = changed(mine(), host="another-host")


@pytest.fixture
def folder(tmp_path):
    with AnchoredFolder.open(str(tmp_path)) as opened:
        yield opened


class Scene:
    def __init__(self, folder):
        self.folder = folder
        self.clock = FakeClock()
        self.stop = DownloadStop()
        self.events = []

    def take(self, lock_path="", wait_s=10.0):
        hold = PartialFileLock(self.folder, "f", lock_path=lock_path, wait_s=wait_s)
        teller = DownloadEvents(self.events.append, DownloadRequest(url="http://host/f"), "f")
        return hold.take(clock=self.clock, stop=self.stop, teller=teller)

    def leave(self, writer, name="f.part"):
        self.folder.write_file(name, b"bytes")
        self.folder.write_file(f"{name}.json", dump_sidecar(Sidecar(url="http://host/f", writer=writer)))


@pytest.fixture
def scene(folder):
    return Scene(folder)


@pytest.fixture
def no_locks(monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)


def _living():
    parent = of_pid(os.getppid())
    assert parent is not None
    return parent


def test_a_free_lock_is_taken_and_given_back(scene):
    with scene.take() as hold:
        assert hold.names == ("f.part", "f.part.json")
        with pytest.raises(LockHeld), scene.take(wait_s=0.0):
            pass
    with scene.take():
        pass
    assert scene.folder.names() == []


def test_a_held_lock_is_waited_for_and_said_to_be(scene):
    path = scene.folder.path_of("f.lock")
    with FileLock(path, "something else"):
        with pytest.raises(LockHeld) as held, scene.take(wait_s=2.0):
            pass
        assert scene.clock.monotonic_s() == pytest.approx(2.0)
    assert held.value.exit_code == 16
    assert [event.fields["phase"] for event in scene.events] == ["waiting"]
    assert scene.events[0].fields["path"] == path


def test_a_wait_ends_when_somebody_asks(scene):
    scene.stop.ask(Cancelled("now"))
    with FileLock(scene.folder.path_of("f.lock"), "something else"), pytest.raises(Cancelled), scene.take():
        pass


def test_a_lock_may_lie_elsewhere(scene, tmp_path):
    path = str(tmp_path / "locks" / "f.lock")
    os.mkdir(tmp_path / "locks")
    with scene.take(lock_path=path), pytest.raises(LockHeld):
        FileLock(path, "another").acquire(0.0)
    assert scene.folder.names() == ["locks"]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_lock_file_that_is_none_is_refused_at_once(scene, tmp_path, kind):
    victim = tmp_path / "victim"
    if kind == "link":
        (tmp_path / "f.lock").symlink_to(victim)
    else:
        os.mkfifo(tmp_path / "f.lock")
    with pytest.raises(LocalFile), scene.take():
        pass
    assert not victim.exists()


@pytest.mark.parametrize("writer", [None, mine(), GONE])
def test_what_nobody_writes_any_more_is_taken_over_at_once(scene, writer):
    scene.leave(writer)
    with scene.take():
        assert scene.clock.monotonic_s() == 0.0


def test_a_lock_that_lies_does_not_give_away_what_a_living_process_writes(scene):
    scene.leave(_living())
    with pytest.raises(LockHeld, match="is writing it"), scene.take():
        pass
    assert scene.folder.read_file("f.part", 100) == b"bytes"


def test_what_a_stranger_wrote_is_taken_over_once_it_lies_still(scene):
    scene.leave(ELSEWHERE)
    with scene.take():
        assert scene.clock.monotonic_s() == pytest.approx(WATCH_S)


def test_what_a_stranger_still_writes_is_left_to_it(scene):
    scene.leave(ELSEWHERE)
    part = scene.folder.path_of("f.part")

    class GrowingClock(FakeClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            with open(part, "ab") as file:
                file.write(b"+")

    scene.clock = GrowingClock()
    with pytest.raises(LockHeld, match="another-host"), scene.take():
        pass


def test_without_locks_the_partial_file_is_claimed_and_given_back(scene, no_locks):
    scene.leave(None)
    with scene.take() as hold:
        assert hold.names[0] != "f.part"
        assert scene.folder.look("f.part") is None
        assert scene.folder.read_file(hold.names[0], 100) == b"bytes"
        assert scene.folder.read_file(hold.names[1], 1000) is not None
    assert sorted(scene.folder.names()) == ["f.part", "f.part.json"]


def test_without_locks_a_living_claim_is_left_alone(scene, no_locks):
    with scene.take() as hold:
        scene.folder.write_file(hold.names[0], b"bytes")
        with pytest.raises(LockHeld, match="claimed"), scene.take():
            pass
        assert scene.folder.read_file(hold.names[0], 100) == b"bytes"


def test_without_locks_what_a_dead_process_claimed_is_taken_over(scene, no_locks, monkeypatch):
    with scene.take() as hold:
        ours = hold.names[0]
    dead = ours.replace(f"-{mine().pid}-", f"-{GONE.pid}-")
    scene.leave(None, name=dead)
    with scene.take() as hold:
        assert scene.folder.read_file(hold.names[0], 100) == b"bytes"
        assert scene.folder.read_file(hold.names[1], 1000) is not None
        assert scene.folder.look(dead) is None


def test_without_locks_a_claim_of_another_host_is_neither_waited_for_nor_taken(scene, no_locks):
    with scene.take() as hold:
        ours = hold.names[0]
    theirs = "f.part." + "0" * 8 + ours[len("f.part.") + 8 :]
    scene.leave(None, name=theirs)
    with scene.take() as hold:
        assert scene.folder.look(hold.names[0]) is None
    assert scene.folder.read_file(theirs, 100) == b"bytes"


def test_without_locks_nothing_is_left_where_nothing_was_written(scene, no_locks):
    with scene.take():
        pass
    assert scene.folder.names() == []


def test_a_lock_that_a_killed_process_left_is_swept_and_a_held_one_is_not(scene):
    path = scene.folder.path_of("f.lock")
    scene.folder.write_file("f.lock", b'{"identity":')
    sweep_lock(scene.folder, "f")
    assert scene.folder.names() == []
    with FileLock(path, "another"):
        sweep_lock(scene.folder, "f")
        assert scene.folder.names() == ["f.lock"]


def test_a_file_of_the_user_that_is_called_like_a_lock_is_not_swept(scene):
    scene.folder.write_file("f.lock", b"poetry")
    sweep_lock(scene.folder, "f")
    assert scene.folder.names() == ["f.lock"]
