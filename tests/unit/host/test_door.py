"""Doors: found by name, opened by one, and never in the way after their process is gone."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import NoPermission, Unavailable
from stoker.host.locks import FileLock
from stoker.host.sockets import DaemonSocket, NamedSocket, NamedSocketListener, user_at

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="for Linux")


@pytest.fixture
def door(tmp_path: Path) -> NamedSocket:
    # Longer than the kernel takes as the name of a socket.
    return NamedSocket(str(tmp_path / ("long" * 30)), "name")


def opened(door: NamedSocket) -> NamedSocketListener:
    made = door.open()
    assert made is not None
    return made


def test_nobody_answers_where_nobody_listens(door: NamedSocket) -> None:
    assert door.knock() is None


def test_whoever_knocks_reaches_whoever_listens(door: NamedSocket) -> None:
    there = opened(door)
    link = door.knock()
    assert link is not None
    inside, _ = there.listener.accept()
    with there.listener, link, inside:
        assert (user_at(inside), user_at(link)) == (os.geteuid(), os.geteuid())
        link.sendall(b"hello")
        assert inside.recv(5) == b"hello"


@pytest.mark.timing
def test_where_the_line_is_full_one_waits_a_little_and_nobody_waits_for_that_one(
    door: NamedSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.host.sockets._BACKLOG", 0)
    with opened(door).listener as listener:
        first = door.knock()
        assert first is not None
        began_s = time.monotonic()
        assert door.open() is None, "somebody listens there, however many wait"
        door.clear()
        assert door.is_answered()
        assert time.monotonic() - began_s < 5

        def let_one_in() -> None:
            inside, _ = listener.accept()
            inside.close()

        threading.Timer(0.1, let_one_in).start()
        second = door.knock()
        assert second is not None
        monkeypatch.setattr("stoker.host.sockets._KNOCK_S", 1)
        with pytest.raises(Unavailable, match="its queue is full"):
            door.knock()
        first.close()
        second.close()
    assert door.knock() is None


def test_only_one_opens_a_door(door: NamedSocket) -> None:
    found: list[NamedSocketListener | None] = []
    threads = [threading.Thread(target=lambda: found.append(door.open())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (there,) = [one for one in found if one is not None]
    there.listener.close()


def test_a_door_that_a_killed_process_left_is_opened_anew_or_cleared(door: NamedSocket) -> None:
    opened(door).listener.close()
    assert os.path.exists(door.path)
    assert door.knock() is None
    there = opened(door)
    door.clear()
    assert os.path.exists(door.path), "somebody listens there"
    there.listener.close()
    door.clear()
    assert not os.path.exists(door.path)


def test_a_door_at_which_somebody_waits_stays_open_if_that_is_asked(door: NamedSocket) -> None:
    there = opened(door)
    link = door.knock()
    assert link is not None
    with there.listener, link:
        assert not door.close(there, unless_knocked=True)
        assert door.close(there)
        assert door.knock() is None


def test_closing_leaves_alone_what_was_opened_later_under_the_same_name(door: NamedSocket) -> None:
    first = opened(door)
    door.close(first)
    first.listener.close()
    second = opened(door)
    with second.listener:
        door.close(first)
        link = door.knock()
        assert link is not None
        link.close()


def test_an_opening_is_taken_away_by_its_mark_and_no_later_one(door: NamedSocket) -> None:
    with opened(door).listener:
        mark = door.mark()
        door.take_away(mark)
        assert (door.mark(), door.knock()) == ("", None)
        with opened(door).listener:
            door.take_away(mark)
            assert door.mark() not in ("", mark)


def test_a_folder_that_others_may_look_into_is_refused(door: NamedSocket) -> None:
    os.mkdir(door.folder, 0o755)
    with pytest.raises(NoPermission, match=r"others have access to .*: its mode is 755") as refused:
        door.open()
    assert refused.value.hint.startswith(f"chmod 700 {door.folder}")


def test_a_folder_that_is_none_or_only_a_link_to_one_is_refused(door: NamedSocket, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    os.symlink(tmp_path / "real", door.folder)
    with pytest.raises(NoPermission, match="is a link"):
        door.knock()
    os.unlink(door.folder)
    Path(door.folder).touch()
    with pytest.raises(NoPermission, match="is not a folder"):
        door.knock()


def test_somebody_elses_folder_is_refused(door: NamedSocket, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkdir(door.folder, 0o700)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(NoPermission, match=f"belongs to user {own}, not to this one"):
        door.knock()


def test_the_folder_is_made_for_this_user_alone(door: NamedSocket) -> None:
    with opened(door).listener:
        assert stat.S_IMODE(os.stat(door.folder).st_mode) == 0o700


@pytest.fixture
def short() -> Iterator[NamedSocket]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield NamedSocket(os.path.join(folder, "d"), "name")


def kept(door: NamedSocket) -> DaemonSocket:
    made = DaemonSocket.open(door)
    assert made is not None
    return made


def is_reached(door: NamedSocket, listener: socket.socket) -> bool:
    link = door.knock()
    if link is None:
        return False
    inside, _ = listener.accept()
    link.close()
    inside.close()
    return True


def test_the_kernel_lists_a_socket_by_its_real_path_where_that_is_short_enough(short: NamedSocket) -> None:
    with opened(short).listener as listener:
        bound = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
        assert short.path in bound, "programs that delete old files look there for sockets in use"
        assert is_reached(short, listener)


def test_a_folder_that_was_exchanged_meanwhile_gets_no_listener(
    short: NamedSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = NamedSocket._locked

    def exchange(door: NamedSocket) -> FileLock:
        os.rename(door.folder, door.folder + "-away")
        os.mkdir(door.folder, 0o700)
        return lock(door)

    monkeypatch.setattr(NamedSocket, "_locked", exchange)
    with pytest.raises(NoPermission, match="exchanged"):
        short.open()


def test_while_a_door_is_kept_its_folder_is_locked_for_those_who_delete_old_files(door: NamedSocket) -> None:
    held = kept(door)
    folder = os.open(door.folder, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    held.close()
    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(folder)
    assert door.mark() == ""


def test_the_times_of_a_kept_door_are_renewed_and_it_is_still_closed_by_its_keeper(door: NamedSocket) -> None:
    held = kept(door)
    os.utime(door.path, (1.0, 1.0))
    assert held.renew() is None
    assert os.lstat(door.path).st_mtime > time.time() - 60
    assert os.lstat(door.path).st_atime > time.time() - 60
    assert is_reached(door, held.listener)
    held.close()
    assert (door.mark(), held.listener.fileno()) == ("", -1)


@pytest.mark.parametrize("is_folder_gone", [False, True])
def test_a_kept_door_whose_name_was_deleted_is_opened_again(door: NamedSocket, is_folder_gone: bool) -> None:
    held = kept(door)
    first = held.listener
    os.unlink(door.path)
    if is_folder_gone:
        shutil.rmtree(door.folder)
    assert door.knock() is None
    second = held.renew()
    assert second is held.listener
    assert second is not None
    assert is_reached(door, second)
    first.close()
    folder = os.open(door.folder, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(folder)
    held.close()
    assert door.knock() is None


def test_a_name_that_another_process_has_taken_is_left_to_it(door: NamedSocket) -> None:
    held = kept(door)
    os.unlink(door.path)
    with opened(door).listener as other:
        with pytest.raises(Unavailable, match="another process"):
            held.renew()
        held.close()
        assert is_reached(door, other)
