"""Files of metrics that hold anything: readers never raise, keep their bounds, and take linear time."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.clock import FakeClock
from stoker.engine.metrics.written import LOOK_EVERY_S, WrittenMetrics
from stoker.engine.metrics.written_formats import (
    PART_BYTES,
    CsvReader,
    EventFileReader,
    MetricReader,
    MlflowReader,
    TrainerStateReader,
    WandbReader,
    WrittenRow,
    masked_crc,
)
from tests.lengths import examples

RECORDED = Path(__file__).parents[1] / "recordings" / "metrics"
READERS: dict[str, Callable[[], MetricReader]] = {
    "events.out.tfevents.1": EventFileReader,
    "metrics.csv": CsvReader,
    "trainer_state.json": TrainerStateReader,
    "run-1.wandb": WandbReader,
    "metrics/loss": lambda: MlflowReader("loss"),
}
WHOLE = [
    (RECORDED / "tensorboard/new_style/events.out.tfevents.1794967776.host.1.3").read_bytes(),
    (RECORDED / "tensorboard/plain/events.out.tfevents.1794967776.host.1.0").read_bytes(),
    (RECORDED / "lightning/metrics.csv").read_bytes(),
    (RECORDED / "transformers/trainer_state.json").read_bytes(),
    (RECORDED / "wandb/offline-run-20261118_021321-r71gmg4u/run-r71gmg4u.wandb").read_bytes(),
    b"1794967832782 1.0 0\n1794967832786 0.5 10\n",
]


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """A recorded file with bytes changed, taken out and put in."""
    data = bytearray(draw(st.sampled_from(WHOLE)))
    for _ in range(draw(st.integers(0, 5))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 40))] = draw(st.binary(max_size=40))
    return bytes(data)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """Records of an event file with right checksums around anything."""
    data = b""
    for event in draw(st.lists(st.binary(max_size=60), max_size=5)):
        size = len(event).to_bytes(8, "little")
        data += size + masked_crc(size).to_bytes(4, "little") + event + masked_crc(event).to_bytes(4, "little")
    return data


def read_all(reader: MetricReader, data: bytes) -> list[WrittenRow]:
    at = 0
    while at < len(data):
        taken = reader.read(data[at:] if reader.needs_whole_file else data[at : at + PART_BYTES], at)
        assert taken >= 0
        if not taken:
            break
        at += taken
    return reader.rows


@settings(max_examples=examples(150, 5000))
@given(data=st.one_of(st.binary(max_size=2000), spoilt(), records()))
def test_any_bytes_are_read_without_a_fault_of_ours(data: bytes) -> None:
    for make in READERS.values():
        reader = make()
        for step, values in read_all(reader, data):
            assert type(step) is int
            assert -(1 << 63) <= step < 1 << 63
            assert all(type(value) is float for value in values.values())
        assert len(reader.fault) < 2000


@settings(max_examples=examples(25, 1000))
@given(
    versions=st.lists(st.one_of(st.binary(max_size=300), spoilt()), min_size=1, max_size=4),
    name=st.sampled_from([*READERS]),
)
def test_files_may_be_replaced_by_anything(
    tmp_path_factory: pytest.TempPathFactory, versions: list[bytes], name: str
) -> None:
    folder = tmp_path_factory.mktemp("out")
    (folder / "metrics").mkdir()
    (folder / "meta.yaml").touch()
    clock = FakeClock()
    log: list[str] = []
    written = WrittenMetrics([str(folder)], [], clock, log=log.append)
    for data in versions:
        (folder / name).write_bytes(data)
        clock.advance(LOOK_EVERY_S)
        written.look()
    list(written.rest())
    assert len(log) <= 1


@pytest.mark.timing
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "unit",
    [
        b"{",
        b'{"step": 1',
        b'{"step":1,"loss":2},',
        b"a,",
        b"1,2\n",
        b'"',
        b"\n",
        b"\0",
        b"\xff",
        b":W&B",
        b"\x80",
        b"[]",
    ],
    ids=repr,
)
def test_time_is_linear(name: str, unit: bytes) -> None:
    def seconds(count: int) -> float:
        data = b'"log_history": step,' + unit * (count // len(unit))
        times = []
        for _ in range(3):
            start = time.perf_counter()
            read_all(READERS[name](), data)
            times.append(time.perf_counter() - start)
        return min(times)

    assert seconds(400_000) < 40 * seconds(40_000) + 0.05
