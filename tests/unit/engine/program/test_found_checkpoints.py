"""Checkpoints that programs write by themselves: found, judged, kept and put back."""

from __future__ import annotations

import json
import os
import struct
import time
import zipfile
from pathlib import Path

import pytest

from stoker.engine.program import fill_resume
from stoker.engine.runners.program.found_checkpoints import CheckpointFinder, KeptCheckpoint, is_whole, put_back
from stoker.engine.scratch import digest_checkpoint
from stoker.trainer.stoker_trainer import keep_checkpoint


def zipped(path: Path, step: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("step", str(step))
        file.writestr("weights", b"w" * 2000)
    return path


def safetensors(path: Path, *, missing_bytes: int = 0) -> Path:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * (16 - missing_bytes))
    return path


def found(finder: CheckpointFinder) -> tuple[str, int | None] | None:
    one = finder.look()
    return None if one is None else (one.place, one.step)


def test_a_new_whole_checkpoint_is_found_once(tmp_path: Path) -> None:
    zipped(tmp_path / "old.pt")
    finder = CheckpointFinder({"out": str(tmp_path)})
    assert found(finder) is None
    zipped(tmp_path / "runs" / "epoch=3-step=100.ckpt")
    assert found(finder) == ("out/runs/epoch=3-step=100.ckpt", 100)
    assert found(finder) is None
    zipped(tmp_path / "old.pt", 2)
    assert found(finder) == ("out/old.pt", None)


@pytest.mark.parametrize("cut", [1, 5, 30, 500, 2100])
def test_a_file_that_is_half_written_is_not_whole(tmp_path: Path, cut: int) -> None:
    path = zipped(tmp_path / "ckpt.pt")
    assert is_whole(str(path), is_unchanged=False)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert not is_whole(str(path), is_unchanged=True)
    assert is_whole(str(safetensors(tmp_path / "a.safetensors")), is_unchanged=False)
    assert not is_whole(str(safetensors(tmp_path / "b.safetensors", missing_bytes=min(cut, 16))), is_unchanged=True)


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04", b"\xff" * 8 + b"{", struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 9) + b'{"a": 1}x']
)
def test_garbage_is_not_whole(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    assert not is_whole(str(path), is_unchanged=True)


@pytest.mark.parametrize("name", ["weights.h5", "model_10.ubj"])
def test_a_file_without_a_sign_of_its_end_is_taken_when_it_does_not_change(tmp_path: Path, name: str) -> None:
    finder = CheckpointFinder({"out": str(tmp_path)})
    path = tmp_path / name
    path.write_bytes(b"\x89HDF" + b"1" * 100)
    assert found(finder) is None
    with path.open("ab") as file:
        file.write(b"more")
    assert found(finder) is None
    assert found(finder) == (f"out/{name}", None)


def test_a_folder_is_one_checkpoint_and_the_last_file_tells_that_it_is_whole(tmp_path: Path) -> None:
    finder = CheckpointFinder({"folder/out": str(tmp_path)})
    folder = tmp_path / "checkpoint-500"
    safetensors(folder / "model.safetensors")
    zipped(folder / "optimizer.pt")
    assert [found(finder) for _ in range(3)] == [None] * 3
    (folder / "trainer_state.json").write_text("{}")
    assert [found(finder) for _ in range(3)] == [None, ("folder/out/checkpoint-500", 500), None]


def test_a_folder_with_all_files_of_transformers_is_taken_at_once(tmp_path: Path) -> None:
    finder = CheckpointFinder({"folder/out": str(tmp_path)})
    folder = tmp_path / "checkpoint-20"
    for name in ("model.safetensors", "optimizer.pt", "rng_state.pth"):
        (safetensors if name.endswith(".safetensors") else zipped)(folder / name)
    (folder / "trainer_state.json").write_text('{"step": 2')
    assert found(finder) is None
    (folder / "trainer_state.json").write_text('{"step": 20}')
    assert [found(finder) for _ in range(2)] == [("folder/out/checkpoint-20", 20), None]


def test_the_best_one_is_no_place_to_resume_from_if_there_is_another(tmp_path: Path) -> None:
    finder = CheckpointFinder({"out": str(tmp_path)})
    zipped(tmp_path / "last.pt")
    os.utime(zipped(tmp_path / "best.pt"), (time.time() + 5, time.time() + 5))
    assert [found(finder) for _ in range(3)] == [("out/last.pt", None), None, None]
    os.utime(zipped(tmp_path / "best.pt", 2), (time.time() + 9, time.time() + 9))
    assert found(finder) is None, "the one that was kept before goes before it"


def test_the_best_one_is_taken_if_there_is_no_other(tmp_path: Path) -> None:
    finder = CheckpointFinder({"out": str(tmp_path)})
    zipped(tmp_path / "best.pt")
    assert found(finder) == ("out/best.pt", None)
    zipped(tmp_path / "last.pt")
    assert found(finder) == ("out/last.pt", None)


def test_of_several_that_come_at_once_only_the_newest_is_taken(tmp_path: Path) -> None:
    finder = CheckpointFinder({"out": str(tmp_path)})
    for age_s, step in ((3, 100), (1, 300), (2, 200)):
        os.utime(zipped(tmp_path / f"step-{step}.pt"), (time.time() - age_s, time.time() - age_s))
    assert [found(finder) for _ in range(4)] == [("out/step-300.pt", 300), None, None, None]
    zipped(tmp_path / "step-400.pt")
    assert found(finder) == ("out/step-400.pt", 400)


def test_folders_of_accelerate_and_sharded_ones_of_the_trainer_are_judged_by_their_files(tmp_path: Path) -> None:
    finder = CheckpointFinder({"out": str(tmp_path)})
    safetensors(tmp_path / "checkpoint_1" / "model.safetensors")
    (tmp_path / "checkpoint_1" / "random_states_0.pkl").write_bytes(b"\x80\x04.")
    assert [found(finder) for _ in range(2)] == [None, ("out/checkpoint_1", 1)]
    safetensors(tmp_path / "checkpoint-2" / "model-00001-of-00002.safetensors")
    zipped(tmp_path / "checkpoint-2" / "training_args.bin")
    assert [found(finder) for _ in range(3)] == [None] * 3
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text("{}")
    assert [found(finder) for _ in range(2)] == [None, ("out/checkpoint-2", 2)]


def test_links_and_pipes_are_none(tmp_path: Path) -> None:
    logged: list[str] = []
    finder = CheckpointFinder({"out": str(tmp_path / "out")}, log=logged.append)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "link.pt").symlink_to(zipped(tmp_path / "elsewhere.pt"))
    os.mkfifo(tmp_path / "out" / "pipe.pt")
    folder = tmp_path / "out" / "checkpoint-1"
    folder.mkdir()
    zipped(folder / "a.pt")
    (folder / "base").symlink_to(tmp_path)
    (tmp_path / "out" / "loop").symlink_to(tmp_path / "out")
    assert [found(finder) for _ in range(3)] == [None] * 3
    assert logged == [
        "checkpoint checkpoint-1 is not kept: it has a link to a folder, a pipe or a device, or too many files"
    ]
    (folder / "base").unlink()
    (folder / "b.pt").symlink_to(tmp_path / "elsewhere.pt")
    assert [found(finder) for _ in range(2)] == [None, ("out/checkpoint-1", 1)], "a link to a file counts as the file"


def test_checkpoints_are_found_behind_very_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.engine.runners.program.found_checkpoints._MOST_ENTRIES", 20)
    logged: list[str] = []
    finder = CheckpointFinder({"out": str(tmp_path)}, log=logged.append)
    zipped(tmp_path / "ck" / "model.pt", 1)
    assert found(finder) == ("out/ck/model.pt", None)
    for number in range(50):
        (tmp_path / f"{number}.png").touch()
    zipped(tmp_path / "ck" / "model.pt", 2)
    assert found(finder) == ("out/ck/model.pt", None), "one that is known is looked at first"
    assert found(finder) is None
    assert logged == ["more than 20 files and folders; not all were searched for checkpoints"]


def test_deep_folders_and_large_headers_cost_little(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-1"
    (folder / "/".join("d" * 300)).mkdir(parents=True)
    zipped(folder / "a.pt")
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", 90 << 20) + b"{" + b" " * (90 << 20))
    begun_s = time.process_time()
    assert not is_whole(str(tmp_path / "m.safetensors"), is_unchanged=False)
    assert is_whole(str(folder), is_unchanged=True)
    assert time.process_time() - begun_s < 1


def put(
    kept: Path, place: str, folders: dict[str, str], *, at_s: float | None = None, interrupted_s: float | None = 4e9
) -> tuple[str, str]:
    digest, _ = digest_checkpoint(str(kept))
    one = KeptCheckpoint(path=str(kept), place=place, at_s=time.time() if at_s is None else at_s, digest=digest)
    return put_back(one, folders, interrupted_s=interrupted_s)


def test_what_was_kept_is_put_back_over_a_half_written_file(tmp_path: Path) -> None:
    path, scratch = zipped(tmp_path / "work" / "out-x" / "ckpt.pt", 7), tmp_path / "scratch"
    scratch.mkdir()
    kept = keep_checkpoint(str(path), 7, str(scratch), "key", "folder/out-x/ckpt.pt")
    assert json.loads((scratch / "checkpoints.json").read_text())["checkpoints"][-1]["place"] == "folder/out-x/ckpt.pt"
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    assert Path(kept).read_bytes() == whole, "it is a copy, so that the program may write over its own"
    folders = {"folder/out-x": str(path.parent), "out": str(tmp_path / "out")}
    assert put(Path(kept), "folder/out-x/ckpt.pt", folders) == (str(path), "")
    assert path.read_bytes() == whole
    assert os.listdir(path.parent) == ["ckpt.pt"]
    elsewhere, _ = put(Path(kept), "out/deep/ckpt.pt", folders)
    assert Path(elsewhere).read_bytes() == whole


def test_a_newer_whole_one_stays(tmp_path: Path) -> None:
    kept, path = zipped(tmp_path / "kept.pt", 1), zipped(tmp_path / "work" / "ckpt.pt", 2)
    newer = path.read_bytes()
    folders, time_s = {"folder/w": str(path.parent)}, path.stat().st_mtime
    assert put(kept, "folder/w/ckpt.pt", folders, at_s=time_s - 1) == (str(path), "")
    assert path.read_bytes() == newer
    aside = f"{path}.before-resume"
    assert put(kept, "folder/w/ckpt.pt", folders, at_s=time_s + 1) == (str(path), aside)
    assert (path.read_bytes(), Path(aside).read_bytes()) == (kept.read_bytes(), newer)


def test_what_other_work_or_the_user_wrote_is_put_aside(tmp_path: Path) -> None:
    kept, path = zipped(tmp_path / "kept.pt", 1), zipped(tmp_path / "work" / "ckpt.pt", 2)
    folders, other = {"folder/w": str(path.parent)}, path.read_bytes()
    assert put(kept, "folder/w/ckpt.pt", folders, at_s=0.0, interrupted_s=None)[1] == f"{path}.before-resume"
    assert Path(f"{path}.before-resume").read_bytes() == other
    Path(f"{path}.before-resume").replace(path)
    written_s = path.stat().st_mtime
    assert put(kept, "folder/w/ckpt.pt", folders, at_s=0.0, interrupted_s=written_s - 9)[1] == f"{path}.before-resume"
    assert Path(f"{path}.before-resume").read_bytes() == other, "it was written when the program was gone"
    hand = path.with_name("m.h5")
    hand.write_bytes(b"made by hand")
    (tmp_path / "kept.h5").write_bytes(b"older")
    assert put(tmp_path / "kept.h5", "folder/w/m.h5", folders, at_s=0.0)[1] == f"{hand}.before-resume"
    assert Path(f"{hand}.before-resume").read_bytes() == b"made by hand"


def test_what_is_the_same_stays_with_all_that_a_copy_lacks(tmp_path: Path) -> None:
    kept, place = tmp_path / "kept", tmp_path / "work" / "checkpoint-5"
    for folder in (kept, place):
        zipped(folder / "optimizer.pt").touch()
        (folder / "optimizer.pt").write_bytes(b"same")
    (place / "empty").mkdir()
    assert put(kept, "folder/w/checkpoint-5", {"folder/w": str(place.parent)}, interrupted_s=None)[1] == ""
    assert sorted(os.listdir(place)) == ["empty", "optimizer.pt"]


def test_a_folder_is_put_back_whole(tmp_path: Path) -> None:
    kept, place = tmp_path / "kept", tmp_path / "work" / "checkpoint-5"
    zipped(kept / "optimizer.pt")
    zipped(place / "optimizer.pt").write_bytes(b"PK\x03\x04")
    (place / "stray").touch()
    put(kept, "folder/w/checkpoint-5", {"folder/w": str(place.parent)}, at_s=time.time() + 9)
    assert os.listdir(place) == ["optimizer.pt"]
    assert is_whole(str(place / "optimizer.pt"), is_unchanged=True)


@pytest.mark.parametrize(
    "place",
    [
        "",
        "out",
        "other/a.pt",
        "folder/train.py",
        "folder/wx/a.pt",
        "out/../a.pt",
        "out//a.pt",
        "/etc/a.pt",
        "out/./a.pt",
    ],
)
def test_a_place_outside_is_refused(tmp_path: Path, place: str) -> None:
    kept = zipped(tmp_path / "kept.pt")
    (tmp_path / "out").mkdir()
    before = sorted(map(str, tmp_path.rglob("*")))
    assert put(kept, place, {"out": str(tmp_path / "out"), "folder/w": str(tmp_path / "w")}) == ("", "")
    assert sorted(map(str, tmp_path.rglob("*"))) == before


def test_the_words_of_a_program_get_the_checkpoint_or_are_left_out() -> None:
    words = ("python", "t.py", "--from", "{resume}", "--init={resume?resume:scratch}", "--ckpt={resume}", "x")
    assert fill_resume(words, "/a b/c.pt") == (
        *("python", "t.py", "--from", "/a b/c.pt", "--init=resume", "--ckpt=/a b/c.pt", "x"),
    )
    assert fill_resume(words, "") == ("python", "t.py", "--init=scratch", "x")
    assert fill_resume(("sh", "-c", "echo {resume?yes:}{x}"), "") == ("sh", "-c", "echo {x}")
    assert fill_resume(("t", "{resume}"), "") == ("t",)
