from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from stoker.core.digests import Digest
from stoker.engine.scratch import Checkpoint, choose_checkpoint
from stoker.trainer.stoker_trainer import keep_checkpoint

KEY = Digest("a" * 64)


def entry(scratch: Path, name: str, data: bytes, *, key: str = KEY, **more: Any) -> dict[str, Any]:
    (scratch / name).write_bytes(data)
    said = {"file": name, "sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data), "resume_key": key}
    return {**said, **more}


def write_index(scratch: Path, *entries: Any) -> None:
    (scratch / "checkpoints.json").write_text(json.dumps({"v": 1, "checkpoints": list(entries)}))


def test_the_newest_whose_bytes_are_what_was_saved_is_chosen(tmp_path: Path) -> None:
    write_index(tmp_path, entry(tmp_path, "one", b"1", step=1), entry(tmp_path, "two", b"2", step=2))
    choice = choose_checkpoint(str(tmp_path), KEY)
    assert choice.checkpoint == Checkpoint(path=str(tmp_path / "two"), step=2)
    assert choice.refused == ()


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda path: path.write_bytes(b"3"), "two is not what was saved"),
        (lambda path: path.write_bytes(b"2 and more"), "two is not what was saved"),
        (lambda path: path.unlink(), "two is gone"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "two is not what was saved"),
        (lambda path: (path.unlink(), path.symlink_to("/etc/hostname")), "two lies outside the scratch folder"),
        (lambda path: (path.unlink(), path.mkdir(), os.mkfifo(path / "pipe")), "two is not what was saved"),
        (lambda path: (path.unlink(), path.symlink_to(path)), "two is gone"),
    ],
    ids=["other bytes", "longer", "gone", "a pipe", "a link outward", "a folder with a pipe", "a link to itself"],
)
def test_a_damaged_one_falls_back_to_the_one_before(tmp_path: Path, harm: Any, why: str) -> None:
    write_index(tmp_path, entry(tmp_path, "one", b"1", step=1), entry(tmp_path, "two", b"2", step=2))
    harm(tmp_path / "two")
    choice = choose_checkpoint(str(tmp_path), KEY)
    assert choice.checkpoint == Checkpoint(path=str(tmp_path / "one"), step=1)
    assert choice.refused == (why,)


def test_one_of_another_configuration_is_refused(tmp_path: Path) -> None:
    write_index(tmp_path, entry(tmp_path, "one", b"1", key="b" * 64))
    choice = choose_checkpoint(str(tmp_path), KEY)
    assert choice.checkpoint is None
    assert choice.refused == ("one was made from another configuration or other data",)


@pytest.mark.parametrize("name", ["", "../out", "/etc/hostname", "a\0b", 7, None, ["x"]])
def test_a_name_that_leads_nowhere_good_is_refused(tmp_path: Path, name: Any) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "out").write_bytes(b"1")
    write_index(scratch, {**entry(scratch, "one", b"1"), "file": name})
    choice = choose_checkpoint(str(scratch), KEY)
    assert choice.checkpoint is None
    assert len(choice.refused) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"checkpoints": 3}',
        '{"checkpoints": [1, "x", null]}',
        "\ud800".encode("utf-16", "replace"),
    ],
)
def test_an_index_that_is_none_means_no_checkpoint(tmp_path: Path, text: str | bytes) -> None:
    (tmp_path / "checkpoints.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert choose_checkpoint(str(tmp_path), KEY).checkpoint is None


def test_an_index_that_is_a_pipe_or_endless_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "checkpoints.json")
    assert choose_checkpoint(str(tmp_path), KEY).checkpoint is None
    (tmp_path / "checkpoints.json").unlink()
    with (tmp_path / "checkpoints.json").open("wb") as file:
        file.truncate(1 << 40)
    assert choose_checkpoint(str(tmp_path), KEY).checkpoint is None


def test_what_the_trainer_keeps_is_what_is_chosen_file_and_folder(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    source = tmp_path / "ckpt"
    (source / "deep").mkdir(parents=True)
    (source / "model.pt").write_bytes(b"weights")
    (source / "deep" / "optimiser.pt").write_bytes(b"moments")
    keep_checkpoint(str(source / "model.pt"), 1, str(scratch), KEY)
    keep_checkpoint(str(source), 2, str(scratch), KEY)
    chosen = choose_checkpoint(str(scratch), KEY).checkpoint
    assert chosen is not None
    assert chosen.step == 2
    assert Path(chosen.path, "deep", "optimiser.pt").read_bytes() == b"moments"
    Path(chosen.path, "model.pt").write_bytes(b"damaged")
    before = choose_checkpoint(str(scratch), KEY).checkpoint
    assert before is not None
    assert before.step == 1
    assert Path(before.path).read_bytes() == b"weights"


@pytest.mark.parametrize("name", ["\ud800", "a\udfffb", "\udc00/two"])
def test_a_name_that_no_file_can_have_is_passed_over(tmp_path: Path, name: str) -> None:
    odd = {**entry(tmp_path, "two", b"2", step=2), "file": name}
    write_index(tmp_path, entry(tmp_path, "one", b"1", step=1), odd)
    choice = choose_checkpoint(str(tmp_path), KEY)
    assert choice.checkpoint == Checkpoint(path=str(tmp_path / "one"), step=1)
    assert choice.refused == (f"{name!a} can't be the name of a file",)


def test_a_name_that_is_no_text_is_a_name_like_any_other(tmp_path: Path) -> None:
    name = os.fsdecode(b"\xff")
    write_index(tmp_path, entry(tmp_path, name, b"1", step=1))
    assert choose_checkpoint(str(tmp_path), KEY).checkpoint == Checkpoint(path=str(tmp_path / name), step=1)
