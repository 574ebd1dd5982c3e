from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stoker.cookbooks.language.schemas import Metadata, best_folder, read_metadata
from stoker.core.digests import digest_bytes
from stoker.core.errors import BadInput, LocalFile
from stoker.core.jsontext import dumps, loads
from stoker.engine.scratch import INDEX, choose_checkpoint, digest_checkpoint
from tests.later import imported_later

with imported_later():
    import torch

    from stoker.cookbooks.language.shared.outputs import epoch_folder, keep, recall, write_checkpoint


CONFIG = {"lr": 0.1, "targets": ["q_proj"]}


def state(step: int, **said: Any) -> dict[str, Any]:
    numbers = {"q": (torch.full((2, 3), float(step)), torch.zeros(3, 2))}
    return {
        "model": numbers,
        "opt": {"first": numbers, "second": {}, "steps": step},
        "config": CONFIG,
        "step": step,
        "rng": {"seed": 1, "epoch": 0, "batch": step},
        "sched": {"curve": [1.5]},
        "best": None,
        **said,
    }


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    # As a stage has it: named by its key.
    folder = tmp_path / digest_bytes(b"key")
    folder.mkdir()
    return folder


def test_the_newest_state_comes_back_as_it_was(scratch: Path) -> None:
    keep(scratch, state(1))
    keep(scratch, state(2))
    found = recall(scratch, CONFIG)
    assert found.state is not None
    assert found.notes == ()
    assert found.state["step"] == 2
    assert torch.equal(found.state["model"]["q"][0], torch.full((2, 3), 2.0))
    assert found.state["sched"] == {"curve": [1.5]}


def test_a_damaged_state_is_passed_over_for_the_one_before_it(scratch: Path) -> None:
    for step in (1, 2, 3):
        keep(scratch, state(step))
    kept = sorted((scratch / "checkpoints").iterdir())
    assert len(kept) == 2
    kept[-1].write_bytes(kept[-1].read_bytes()[:-7])
    found = recall(scratch, CONFIG)
    assert found.state is not None
    assert found.state["step"] == 2
    assert "is not what was saved" in found.notes[0]


def test_a_state_of_another_configuration_is_refused(scratch: Path, tmp_path: Path) -> None:
    keep(scratch, state(1))
    found = recall(scratch, {**CONFIG, "lr": 0.2})
    assert found.state is None
    assert "another configuration" in found.notes[0]
    elsewhere = scratch.rename(tmp_path / digest_bytes(b"another key"))
    assert recall(elsewhere, CONFIG).state is None


def test_a_state_with_something_missing_is_refused(scratch: Path) -> None:
    keep(scratch, state(1))
    file = next((scratch / "checkpoints").iterdir())
    raw = torch.load(file, weights_only=True)
    del raw["rng"]
    torch.save(raw, file)
    index = loads((scratch / INDEX).read_bytes())
    index["checkpoints"][0]["sha256"], index["checkpoints"][0]["size_bytes"] = digest_checkpoint(str(file))
    (scratch / INDEX).write_text(dumps(index))
    found = recall(scratch, CONFIG)
    assert found.state is None
    assert "can't be used (KeyError)" in found.notes[0]


def test_nothing_kept_is_nothing_to_go_on_from(scratch: Path) -> None:
    assert recall(scratch, CONFIG).state is None
    assert recall(scratch, CONFIG).notes == ()


def test_a_fleet_finds_the_state_under_the_key_that_names_the_folder(scratch: Path) -> None:
    keep(scratch, state(4))
    choice = choose_checkpoint(str(scratch), digest_bytes(b"key"))
    assert choice.checkpoint is not None
    assert choice.checkpoint.step == 4


def metadata(step: int) -> Metadata:
    return Metadata(
        mode="lora",
        adapter_index=0,
        epoch=1,
        train_loss=1.0,
        val_loss=2.0,
        avg_loss=1.5,
        rank=4,
        alpha=8.0,
        global_step=step,
        label="a",
    )


def fill(folder: Path) -> None:
    (folder / "weights").write_text("w")


def test_a_folder_takes_the_place_of_the_one_before_it(tmp_path: Path) -> None:
    root = tmp_path / "deep" / "folder"
    for step in (1, 2):
        write_checkpoint(root, "best", metadata(step), fill)
    assert read_metadata(best_folder(root)) == metadata(2)
    assert [path.name for path in root.iterdir()] == ["best"]
    assert epoch_folder(3) == "epoch-3"


def test_a_writer_that_fails_leaves_the_one_before_it(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "best", metadata(1), fill)

    def fail(folder: Path) -> None:
        fill(folder)
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_checkpoint(tmp_path, "best", metadata(2), fail)
    assert read_metadata(best_folder(tmp_path)) == metadata(1)
    assert [path.name for path in tmp_path.iterdir()] == ["best"], "half of one is in the way on a full disk"
    write_checkpoint(tmp_path, "best", metadata(3), fill)
    assert read_metadata(tmp_path / "best") == metadata(3)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("best", {"thesis.tex": ""}),
        ("best", {"thesis.tex": "", "metadata.json": "x"}),
        ("best", {"thesis.tex": "", "metadata.json": '{"epoch": 1}'}),
        ("best.old", {"thesis.tex": ""}),
    ],
)
def test_what_is_no_checkpoint_or_more_than_one_is_never_replaced(
    tmp_path: Path, name: str, files: dict[str, str]
) -> None:
    (tmp_path / name).mkdir()
    for file, text in files.items():
        (tmp_path / name / file).write_text(text)
    with pytest.raises(LocalFile, match=r"file exists and is not (part of )?a checkpoint|is not part of a checkpoint"):
        write_checkpoint(tmp_path, "best", metadata(1), fill)
    assert sorted(path.name for path in (tmp_path / name).iterdir()) == sorted(files)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("left", [[], ["adapter_model.safetensors"], ["model-00001-of-00002.safetensors"]])
def test_what_a_crash_left_of_the_one_before_is_no_stranger(tmp_path: Path, left: list[str]) -> None:
    write_checkpoint(tmp_path, "best", metadata(1), fill)
    (tmp_path / "best.old").mkdir()
    for name in left:
        (tmp_path / "best.old" / name).touch()
    write_checkpoint(tmp_path, "best", metadata(2), fill)
    assert read_metadata(best_folder(tmp_path)) == metadata(2)
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_the_best_is_found_after_a_crash_while_it_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(tmp_path, "best", metadata(1), fill)
    plain, calls = os.rename, []

    def rename(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        plain(source, target)

    monkeypatch.setattr("os.rename", rename)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path, "best", metadata(2), fill)
    monkeypatch.undo()
    assert read_metadata(best_folder(tmp_path)) == metadata(1)
    write_checkpoint(tmp_path, "best", metadata(3), fill)
    assert read_metadata(best_folder(tmp_path)) == metadata(3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best"]


def test_where_no_best_is_there_is_none_to_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        read_metadata(best_folder(tmp_path))
