"""The book of measured peaks: what it remembers, what it says, what damage does to it."""

from __future__ import annotations

import json
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from stoker.core.errors import BadInput
from stoker.devices.estimate.model_shapes import read_shape
from stoker.devices.estimate.terms import CalibrationFile, correction_of
from stoker.devices.estimate.training_setup import TrainingSpec

SHAPE = read_shape({"model_type": "gpt2"})
TRAINING = TrainingSpec(shape=SHAPE)


def note_some(path: str) -> None:
    for _ in range(5):
        CalibrationFile(path).note(TRAINING, "2.11", measured_bytes=110, estimated_bytes=100)


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "state" / "vram.json")


def test_nothing_is_said_of_what_never_ran(path):
    book = CalibrationFile(path)
    assert book.is_empty
    assert book.correction(TRAINING, "2.11") is None
    assert not os.path.exists(path)


def test_a_run_corrects_the_next_of_its_kind_and_no_other(path):
    CalibrationFile(path).note(TRAINING, "2.11", measured_bytes=1030, estimated_bytes=1000)
    book = CalibrationFile(path)
    found = book.correction(TrainingSpec(shape=SHAPE, batch=8, sequence=512), "2.11")
    assert found is not None
    assert (round(found.percent, 6), found.runs) == (103.0, 1)
    assert book.correction(TRAINING, "2.12") is None
    assert book.correction(TrainingSpec(shape=SHAPE, checkpointing=True), "2.11") is None
    other = read_shape({"model_type": "gpt2", "n_layer": 2})
    assert book.correction(TrainingSpec(shape=other), "2.11") is None


@pytest.mark.parametrize(("count", "place"), [(1, 0), (5, 4), (19, 18), (20, 18), (40, 37)])
def test_nearly_the_largest_ratio_decides(count, place):
    ratios = [[100 + one, 100] for one in range(count)]
    assert correction_of(ratios[::-1]).percent == pytest.approx(100 + place)


def test_old_runs_are_forgotten(path):
    book = CalibrationFile(path)
    book.note(TRAINING, "2.11", measured_bytes=300, estimated_bytes=100)
    last = [book.note(TRAINING, "2.11", measured_bytes=101, estimated_bytes=100) for _ in range(40)][-1]
    assert (round(last.percent, 6), last.runs) == (101.0, 40)


@pytest.mark.parametrize(("measured", "foretold"), [(400, 100), (100, 400), (0, 100), (100, 0), (-5, 100)])
def test_what_can_not_be_the_same_training_is_refused(path, measured, foretold):
    with pytest.raises(BadInput, match="not the same training"):
        CalibrationFile(path).note(TRAINING, "2.11", measured_bytes=measured, estimated_bytes=foretold)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"format":2,"kinds":{}}',
        '{"format":1,"kinds":{"a":[[1]]}}',
        '{"format":1,"kinds":{"a":[]}}',
        '{"format":1,"kinds":{"a":[[true,1]]}}',
        '{"format":1,"kinds":{"a":[[1.5,1]]}}',
        '{"format":1,"kinds":{"a":[[0,1]]}}',
        "[" * 100_000,
        "\udcff",
    ],
    ids=range(12),
)
def test_a_damaged_book_counts_as_empty_and_is_written_anew(path, text):
    os.makedirs(os.path.dirname(path))
    with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    book = CalibrationFile(path)
    assert book.correction(TRAINING, "2.11") is None
    assert "counts as empty" in book.trouble
    book.note(TRAINING, "2.11", measured_bytes=110, estimated_bytes=100)
    assert CalibrationFile(path).correction(TRAINING, "2.11") is not None


def test_processes_that_write_at_once_lose_nothing(path):
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        list(pool.map(note_some, [path] * 3))
    with open(path, encoding="utf-8") as file:
        assert [len(runs) for runs in json.load(file)["kinds"].values()] == [15]
