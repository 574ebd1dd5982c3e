"""Doors: found by name, opened by one, and never in the way after their process is gone."""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from pathlib import Path

import pytest

from stoker.host.door import Door, Opened, user_at
from stoker.model.errors import NoPermission, Unavailable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="for Linux")


@pytest.fixture
def door(tmp_path: Path) -> Door:
    # Longer than the kernel takes as the name of a socket.
    return Door(str(tmp_path / ("long" * 30)), "name")


def opened(door: Door) -> Opened:
    made = door.open()
    assert made is not None
    return made


def test_nobody_answers_where_nobody_listens(door: Door) -> None:
    assert door.knock() is None


def test_whoever_knocks_reaches_whoever_listens(door: Door) -> None:
    there = opened(door)
    link = door.knock()
    assert link is not None
    inside, _ = there.listener.accept()
    with there.listener, link, inside:
        assert (user_at(inside), user_at(link)) == (os.geteuid(), os.geteuid())
        link.sendall(b"hello")
        assert inside.recv(5) == b"hello"


def test_where_the_line_is_full_one_waits_a_little_and_nobody_waits_for_that_one(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stoker.host.door._BACKLOG", 0)
    with opened(door).listener as listener:
        first = door.knock()
        assert first is not None
        began_s = time.monotonic()
        assert door.open() is None, "somebody listens there, however many wait"
        door.clear()
        assert door.is_answered()
        assert time.monotonic() - began_s < 1.0

        def let_one_in() -> None:
            inside, _ = listener.accept()
            inside.close()

        threading.Timer(0.1, let_one_in).start()
        second = door.knock()
        assert second is not None
        monkeypatch.setattr("stoker.host.door._KNOCK_S", 1)
        with pytest.raises(Unavailable, match="too many wait there"):
            door.knock()
        first.close()
        second.close()
    assert door.knock() is None


def test_only_one_opens_a_door(door: Door) -> None:
    found: list[Opened | None] = []
    threads = [threading.Thread(target=lambda: found.append(door.open())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (there,) = [one for one in found if one is not None]
    there.listener.close()


def test_a_door_that_a_killed_process_left_is_opened_anew_or_cleared(door: Door) -> None:
    opened(door).listener.close()
    assert os.path.exists(door.path)
    assert door.knock() is None
    there = opened(door)
    door.clear()
    assert os.path.exists(door.path), "somebody listens there"
    there.listener.close()
    door.clear()
    assert not os.path.exists(door.path)


def test_a_door_at_which_somebody_waits_stays_open_if_that_is_asked(door: Door) -> None:
    there = opened(door)
    link = door.knock()
    assert link is not None
    with there.listener, link:
        assert not door.close(there, unless_knocked=True)
        assert door.close(there)
        assert door.knock() is None


def test_closing_leaves_alone_what_was_opened_later_under_the_same_name(door: Door) -> None:
    first = opened(door)
    door.close(first)
    first.listener.close()
    second = opened(door)
    with second.listener:
        door.close(first)
        link = door.knock()
        assert link is not None
        link.close()


def test_an_opening_is_taken_away_by_its_mark_and_no_later_one(door: Door) -> None:
    with opened(door).listener:
        mark = door.mark()
        door.take_away(mark)
        assert (door.mark(), door.knock()) == ("", None)
        with opened(door).listener:
            door.take_away(mark)
            assert door.mark() not in ("", mark)


def test_a_folder_that_others_may_look_into_is_refused(door: Door) -> None:
    os.mkdir(door.folder, 0o755)
    with pytest.raises(NoPermission, match=r"others may look into .*: its mode is 755") as refused:
        door.open()
    assert refused.value.hint.startswith(f"chmod 700 {door.folder}")


def test_a_folder_that_is_none_or_only_a_link_to_one_is_refused(door: Door, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    os.symlink(tmp_path / "real", door.folder)
    with pytest.raises(NoPermission, match="is a link"):
        door.knock()
    os.unlink(door.folder)
    Path(door.folder).touch()
    with pytest.raises(NoPermission, match="is no folder"):
        door.knock()


def test_somebody_elses_folder_is_refused(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkdir(door.folder, 0o700)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(NoPermission, match=f"belongs to user {own}, not to this one"):
        door.knock()


def test_the_folder_is_made_for_this_user_alone(door: Door) -> None:
    with opened(door).listener:
        assert stat.S_IMODE(os.stat(door.folder).st_mode) == 0o700
