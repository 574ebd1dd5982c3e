from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.clock import FakeClock
from stoker.core.errors import ScratchBusy
from stoker.engine.scratch import (
    BEAT_EVERY_S,
    STALE_AFTER_S,
    Marker,
    Scratch,
    ScratchInUse,
    ScratchResume,
    ScratchStart,
    clear_scratch,
    decide_scratch,
    forgotten,
    open_scratch,
)
from stoker.host.identity import Liveness, identity_from, mine, read_row
from tests.unit.host.real_mounts import small_disk
from tests.unit.host.waiting import at_once

NOBODY = identity_from(2**22 + 1, 1)


def marker(**changes: object) -> Marker:
    facts: dict[str, object] = {"status": "running", "run_id": "one", "owner": NOBODY, "heartbeat_s": 1000.0, **changes}
    return Marker(**facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "liveness", "now_s", "decision"),
    [
        (None, Liveness.GONE, 0.0, ScratchStart),
        (marker(status="finished"), Liveness.GONE, 0.0, ScratchStart),
        (marker(run_id="two"), Liveness.ALIVE, 1000.0, ScratchResume),
        (marker(status="left"), Liveness.ALIVE, 1000.0, ScratchResume),
        (marker(status="what?"), Liveness.ALIVE, 1000.0, ScratchStart),
        (marker(), Liveness.GONE, 1000.0, ScratchResume),
        (marker(), Liveness.ALIVE, 1000.0, ScratchInUse),
        # Known to live: suspended, or busy with a large result.
        (marker(), Liveness.ALIVE, 1000.0 + STALE_AFTER_S, ScratchInUse),
        (marker(), Liveness.UNKNOWN, 1000.0 + STALE_AFTER_S - 1, ScratchInUse),
        (marker(), Liveness.UNKNOWN, 1000.0 + STALE_AFTER_S, ScratchResume),
        # A clock that jumped: nobody can say how old a heartbeat from the future is.
        (marker(heartbeat_s=9e9), Liveness.ALIVE, 1000.0, ScratchInUse),
        (marker(heartbeat_s=9e9), Liveness.UNKNOWN, 1000.0, ScratchInUse),
    ],
)
def test_who_may_work_in_a_scratch_folder(
    found: Marker | None, liveness: Liveness, now_s: float, decision: type
) -> None:
    assert isinstance(decide_scratch(found, run_id="two", liveness=liveness, now_s=now_s), decision)


@given(now_s=st.floats(0, 1e10), heartbeat_s=st.floats(0, 1e10), liveness=st.sampled_from(Liveness))
def test_a_folder_of_another_run_is_never_emptied_while_it_works(
    now_s: float, heartbeat_s: float, liveness: Liveness
) -> None:
    decision = decide_scratch(marker(heartbeat_s=heartbeat_s), run_id="two", liveness=liveness, now_s=now_s)
    assert not isinstance(decision, ScratchStart)
    if liveness is not Liveness.GONE and now_s - heartbeat_s < STALE_AFTER_S:
        assert isinstance(decision, ScratchInUse)


def take(path: Path, run_id: str, clock: FakeClock | None = None) -> Scratch:
    return open_scratch(str(path), run_id=run_id, me=mine(), clock=clock or FakeClock())


def test_what_an_attempt_left_is_there_for_the_next_and_gone_after_success(tmp_path: Path) -> None:
    path = tmp_path / "scratch" / "key"
    first = take(path, "one")
    assert not first.goes_on
    (path / "ckpt").write_text("weights")
    assert take(path, "one").why == "an earlier attempt of this run"
    first.leave()
    again = take(path, "two")
    assert (again.goes_on, again.why) == (True, "run one left it")
    assert (path / "ckpt").read_text() == "weights"
    clear_scratch(str(path))
    assert not path.exists()
    clear_scratch(str(path))


def test_another_run_that_lives_keeps_us_out(tmp_path: Path) -> None:
    path, clock = tmp_path / "key", FakeClock()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        row = read_row(other.pid)
        assert row is not None
        them = identity_from(other.pid, row.start_ticks)
        held = open_scratch(str(path), run_id="one", me=them, clock=clock)
        (path / "ckpt").write_text("theirs")
        with pytest.raises(ScratchBusy, match=f"run one works there .process {other.pid}"):
            take(path, "two", clock)
        clock.advance(STALE_AFTER_S - 1)
        held.beat()
        clock.advance(STALE_AFTER_S - 1)
        with pytest.raises(ScratchBusy):
            take(path, "two", clock)
        assert (path / "ckpt").read_text() == "theirs"
        other.communicate(b"\n")
    assert take(path, "two", clock).goes_on
    assert (path / "ckpt").read_text() == "theirs"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"v": 1}', '{"status": 1, "run_id": null, "owner": {}, "heartbeat_unix": "x"}']
)
def test_a_marker_that_can_not_be_read_means_begin_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.mkdir()
    (path / "marker.json").write_text(text)
    (path / "ckpt").write_text("whose?")
    assert not take(path, "one").goes_on
    assert os.listdir(path) == ["marker.json"]


def test_an_empty_folder_is_not_left_behind(tmp_path: Path) -> None:
    path = tmp_path / "key"
    scratch = take(path, "one")
    scratch.leave()
    assert not path.exists()
    scratch.leave()
    assert not path.exists()


def test_the_heartbeat_is_written_now_and_then_also_when_the_clock_was_set_back(tmp_path: Path) -> None:
    path, clock = tmp_path / "key", FakeClock()
    scratch = take(path, "one", clock)
    first = (path / "marker.json").read_text()
    clock.advance(BEAT_EVERY_S - 1)
    scratch.beat()
    assert (path / "marker.json").read_text() == first
    clock.advance(1)
    scratch.beat()
    second = (path / "marker.json").read_text()
    assert second != first
    clock.jump(-3600)
    scratch.beat()
    assert (path / "marker.json").read_text() != second


def test_a_heartbeat_that_can_not_be_written_ends_nothing(tmp_path: Path) -> None:
    clock = FakeClock()
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        scratch = take(disk / "key", "one", clock)
        with pytest.raises(OSError, match="space"):
            (disk / "ballast").write_bytes(b"x" * 2**20)
        clock.advance(BEAT_EVERY_S)
        scratch.beat()
    scratch.beat()


def test_a_pipe_in_the_place_of_a_marker_keeps_nobody_waiting(tmp_path: Path) -> None:
    folder = tmp_path / "key"
    folder.mkdir()
    os.mkfifo(folder / "marker.json")
    (folder / "old").touch()
    (tmp_path / ".locks").mkdir()
    with at_once():
        assert forgotten(str(tmp_path), older_than_s=0.0, now_s=4e9) == [str(folder)]
        scratch = open_scratch(str(folder), run_id="two", me=mine(), clock=FakeClock(1000.0))
    assert not scratch.goes_on
    assert sorted(os.listdir(folder)) == ["marker.json"]
    (folder / "new").touch()
    (folder / "marker.json").unlink()
    os.mkfifo(folder / "marker.json")
    with at_once():
        clear_scratch(str(folder))
    assert not folder.exists()
