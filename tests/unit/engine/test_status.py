from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import NoSpace
from stoker.core.events import Event, Kinds
from stoker.core.jsontext import loads
from stoker.engine.journal import STEP_BUFFER, STEP_FLUSH_S, StatusWriter, older_generation, read_status
from tests.unit.host.real_mounts import small_disk
from tests.unit.host.waiting import at_once


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000.0)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "status.jsonl")


def writer(path: str, clock: FakeClock, **more: Any) -> StatusWriter:
    return StatusWriter(path, source="run-1", clock=clock, **more)


def step(number: int) -> Event:
    return Event(Kinds.STAGE_STEP, {"node": "n", "step": number, "of": None, "metrics": {}})


def begin(node: str) -> Event:
    return Event(Kinds.STAGE_BEGIN, {"node": node})


def kinds(path: str) -> list[str]:
    return [event["kind"] for event in read_status(path)]


def test_every_line_is_one_flat_object_in_its_envelope(path: str, clock: FakeClock) -> None:
    status = writer(path, clock)
    status.emit(Event(Kinds.STAGE_BEGIN, {"node": "a", "loss": float("nan")}))
    status.emit(Event(Kinds.STAGE_END, {"node": "a"}))
    status.close()
    lines = Path(path).read_text().splitlines()
    assert json.loads(lines[0]) == {
        "v": 1,
        "ts": 1_700_000_000.0,
        "seq": 1,
        "source": "run-1",
        "kind": "stage_begin",
        "node": "a",
        "loss": {"$float": "nan"},
    }
    assert [json.loads(line)["seq"] for line in lines] == [1, 2]


def test_an_event_that_uses_a_name_of_the_envelope_is_a_bug(path: str, clock: FakeClock) -> None:
    status = writer(path, clock)
    with pytest.raises(ValueError, match="envelope"):
        status.emit(Event(Kinds.STAGE_BEGIN, {"seq": 1}))
    status.emit(begin("a"))
    status.close()
    assert kinds(path) == ["stage_begin"]


def test_life_cycle_events_are_there_at_once(path: str, clock: FakeClock) -> None:
    status = writer(path, clock)
    for index in range(5):
        status.emit(begin(str(index)))
        assert len(kinds(path)) == index + 1
    for one in (begin("x"), begin("y")):
        status.hold(one.kind, **one.fields)
    status.emit_held()
    assert len(kinds(path)) == 7
    status.close()


def test_steps_wait_for_their_time(path: str, clock: FakeClock) -> None:
    status = writer(path, clock)
    status.emit(step(1))
    status.tick()
    assert kinds(path) == []
    clock.advance(STEP_FLUSH_S)
    status.tick()
    assert kinds(path) == ["stage_step"]
    status.emit(step(2))
    clock.advance(STEP_FLUSH_S)
    status.emit(step(3))
    assert kinds(path) == ["stage_step"] * 3
    status.close()


def test_steps_come_before_what_happened_after_them(path: str, clock: FakeClock) -> None:
    status = writer(path, clock)
    status.emit(step(1))
    clock.advance(0.1)
    status.emit(Event(Kinds.STAGE_END, {"node": "n"}))
    events = list(read_status(path))
    assert [event["kind"] for event in events] == ["stage_step", "stage_end"]
    assert events[0]["ts"] < events[1]["ts"]
    status.close()


def test_steps_that_do_not_fit_are_counted(path: str, clock: FakeClock) -> None:
    status = writer(path, clock)
    for number in range(STEP_BUFFER + 7):
        status.emit(step(number))
    status.close()
    events = list(read_status(path))
    assert (events[0]["kind"], events[0]["n"]) == ("step_gap", 7)
    assert [event["step"] for event in events[1:]] == list(range(7, STEP_BUFFER + 7))


def test_steps_lose_nothing_else(path: str, clock: FakeClock) -> None:
    status = writer(path, clock)
    for number in range(3 * STEP_BUFFER):
        status.emit(step(number))
        if number % 1000 == 0:
            status.emit(begin(str(number)))
    status.close()
    assert len([kind for kind in kinds(path) if kind == "stage_begin"]) == 3 * STEP_BUFFER // 1000 + 1


def test_many_threads_may_write(path: str, clock: FakeClock) -> None:
    status = writer(path, clock)

    def write() -> None:
        for _ in range(200):
            status.emit(begin("x"))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    status.close()
    assert [event["seq"] for event in read_status(path)] == list(range(1, 801))


def test_a_full_journal_is_set_aside_and_both_are_read(path: str, clock: FakeClock) -> None:
    status = writer(path, clock, rotate_bytes=1000)
    for index in range(15):
        status.emit(begin(f"{index:02}"))
    status.close()
    assert os.path.exists(older_generation(path))
    assert os.path.getsize(path) <= 1000
    nodes = [event["node"] for event in read_status(path)]
    assert nodes == [f"{index:02}" for index in range(15)][-len(nodes) :]
    assert len(nodes) > 8


def test_one_generation_is_kept(path: str, clock: FakeClock) -> None:
    status = writer(path, clock, rotate_bytes=300)
    for index in range(50):
        status.emit(begin(f"{index:02}"))
    status.close()
    assert sorted(os.listdir(os.path.dirname(path))) == ["status.1.jsonl", "status.jsonl"]
    nodes = [event["node"] for event in read_status(path)]
    assert nodes == [f"{index:02}" for index in range(50)][-len(nodes) :]


def test_an_event_larger_than_a_whole_journal_loses_nothing_else(path: str, clock: FakeClock) -> None:
    status = writer(path, clock, rotate_bytes=200)
    status.emit(begin("small"))
    status.emit(begin("x" * 500))
    assert [event["node"][:5] for event in read_status(path)] == ["small", "xxxxx"]
    status.close()


def test_a_torn_last_line_is_passed_over(path: str, clock: FakeClock) -> None:
    status = writer(path, clock)
    status.emit(begin("a"))
    status.emit(begin("b"))
    status.close()
    for cut in range(1, 40):
        data = Path(path).read_bytes()
        Path(path).write_bytes(data[:-1])
        assert [event["node"] for event in read_status(path)] == (["a", "b"] if cut == 1 else ["a"])


@pytest.mark.parametrize(
    "junk", [b"\xff\xfe\n", b"null\n", b"[]\n", b"{\n", b"\n", b'{"v": NaN}\n', b"\x00" * 10 + b"\n"]
)
def test_lines_that_are_no_events_are_passed_over(path: str, clock: FakeClock, junk: bytes) -> None:
    status = writer(path, clock)
    status.emit(begin("a"))
    with open(path, "ab") as file:
        file.write(junk)
    status.emit(begin("b"))
    status.close()
    assert [event["node"] for event in read_status(path)] == ["a", "b"]


def test_a_journal_that_is_not_there_has_no_events(tmp_path: Path) -> None:
    assert list(read_status(str(tmp_path / "status.jsonl"))) == []


def test_listeners_hear_of_what_is_written_already(path: str, clock: FakeClock) -> None:
    heard: list[tuple[str, float, int, int]] = []

    def listen(event: Event, at_s: float, seq: int) -> None:
        heard.append((event.kind, at_s, seq, len(kinds(path))))

    status = writer(path, clock, listeners=(listen,))
    status.emit(begin("a"))
    status.emit(step(1))
    status.close()
    assert heard == [("stage_begin", 1_700_000_000.0, 1, 1), ("stage_step", 1_700_000_000.0, 2, 2)]


def test_what_comes_after_the_end_is_not_taken_and_harms_nobody(path: str, clock: FakeClock, tmp_path: Path) -> None:
    status = writer(path, clock)
    status.emit(begin("a"))
    status.close()
    status.close()
    descriptor = os.open(tmp_path / "other", os.O_CREAT | os.O_RDWR)
    try:
        status.emit(begin("late"))
        status.emit(step(1))
        clock.advance(1)
        status.tick()
        assert os.fstat(descriptor).st_size == 0
    finally:
        os.close(descriptor)
    assert kinds(path) == ["stage_begin"]


def test_a_full_disk_is_told_and_what_comes_later_is_whole(tmp_path: Path, clock: FakeClock) -> None:
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        status = writer(str(disk / "status.jsonl"), clock)
        ballast = disk / "ballast"
        ballast.write_bytes(b"x" * (64 * 1024 - 4096 - 4096))

        def write_until_it_is_full() -> None:
            for index in range(1000):
                status.emit(begin(f"{index:0500}"))

        with pytest.raises(NoSpace):
            write_until_it_is_full()
        ballast.unlink()
        status.emit(begin("after"))
        status.close()
        nodes = [event["node"] for event in read_status(str(disk / "status.jsonl"))]
        assert nodes[-1] == "after"
        assert [int(node) for node in nodes[:-1]] == list(range(len(nodes) - 1))


def test_lines_are_what_our_own_reader_reads(path: str, clock: FakeClock) -> None:
    status = writer(path, clock)
    status.emit(Event(Kinds.STAGE_BEGIN, {"node": "ü\u2028\n", "changes": [{"before": None, "after": float("inf")}]}))
    status.close()
    (line,) = Path(path).read_bytes().decode().split("\n")[:-1]
    assert loads(line)["changes"][0]["after"] == float("inf")


def test_a_pipe_in_the_place_of_a_journal_says_nothing_and_nobody_waits(path: str) -> None:
    os.mkfifo(path)
    Path(older_generation(path)).write_text('{"kind":"stage_begin"}\n')
    with at_once():
        assert list(read_status(path)) == [{"kind": "stage_begin"}]
