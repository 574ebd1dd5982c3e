from __future__ import annotations

import math

import pytest

from stoker.cookbooks.language.schemas import (
    METADATA,
    Metadata,
    best_eval,
    perplexity,
    read_metadata,
    read_training,
    significant,
    write_metadata,
    write_training,
)
from stoker.core import jsontext
from stoker.core.errors import BadInput
from tests.unit.cookbooks.language.told_training import told


def metadata() -> Metadata:
    return Metadata(
        mode="lora",
        adapter_index=2,
        epoch=3,
        train_loss=1.5,
        val_loss=1.25,
        avg_loss=2.0,
        rank=8,
        alpha=16.0,
        global_step=120,
        label="mine",
    )


def test_what_is_written_of_a_checkpoint_is_read_back(tmp_path):
    write_metadata(metadata(), tmp_path)
    assert read_metadata(tmp_path) == metadata()


def test_a_loss_that_is_no_number_is_read_back_and_one_that_is_missing_too(tmp_path):
    write_metadata({**metadata(), "train_loss": math.inf, "val_loss": None}, tmp_path)
    found = read_metadata(tmp_path)
    assert (found["train_loss"], found["val_loss"]) == (math.inf, None)


def test_a_file_of_an_older_program_has_less_in_it(tmp_path):
    (tmp_path / METADATA).write_text('{"epoch": 4, "val_loss": 0.5, "something": "else"}')
    found = read_metadata(tmp_path)
    assert (found["epoch"], found["val_loss"], found["avg_loss"], found["label"]) == (4, 0.5, None, "")
    assert found.keys() == Metadata.__required_keys__


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "has no epoch"),
        ("{}", "has no epoch"),
        ("{", "can't be read"),
        ('{"epoch": "three"}', "invalid epoch"),
        ('{"epoch": 1, "val_loss": "low", "label": 5}', "invalid val_loss, label"),
        ('{"epoch": true}', "invalid epoch"),
        ('{"epoch": 1, "val_loss": 1' + "0" * 400 + "}", "invalid val_loss"),
        ('{"epoch": 1, "alpha": 1' + "0" * 400 + "}", "invalid alpha"),
        ('{"epoch": -1, "rank": 1e300}', "invalid rank, epoch"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_no_checkpoint_is_refused_with_its_place(tmp_path, text, message):
    (tmp_path / METADATA).write_text(text)
    with pytest.raises(BadInput, match=message) as caught:
        read_metadata(tmp_path)
    assert str(tmp_path / METADATA) in caught.value.message


def test_a_training_is_written_the_same_every_time_and_read_back(tmp_path):
    written = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write_training(told(), tmp_path / name)
        assert read_training(tmp_path / name) == told()
        written.append((tmp_path / name / "training.json").read_bytes())
    assert written[0] == written[1]


def test_a_training_with_a_part_missing_is_refused(tmp_path):
    raw = {name: value for name, value in told().items() if name not in {"curve", "base"}}
    (tmp_path / "training.json").write_text(jsontext.dumps(raw))
    with pytest.raises(BadInput, match="has no base, curve"):
        read_training(tmp_path)


def test_the_best_evaluation_is_that_of_what_was_kept():
    assert best_eval(told()) == 1.5
    assert best_eval({**told(), "curve": {**told()["curve"], "kept": 11}}) is None


def test_perplexity_is_the_exponent_of_the_loss():
    assert perplexity(0.0) == 1.0
    assert perplexity(None) is None
    assert perplexity(1e6) == math.inf


def test_what_lies_beyond_six_digits_is_noise():
    assert significant(1.23456789) == 1.23457
    assert significant(math.inf) == math.inf


def test_what_is_no_file_is_not_read(tmp_path):
    (tmp_path / METADATA).symlink_to("/dev/zero")
    with pytest.raises(BadInput, match="not a regular file"):
        read_metadata(tmp_path)
