from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from stoker.core.errors import BadInput, LockHeld, NoSpace
from stoker.engine.program import CollectedOutputs, DeclaredOutputs, checked_output, output_locks, tidy_out
from tests.unit.host.real_mounts import small_disk


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "out").mkdir()
    return tmp_path / "work"


@pytest.fixture
def out(tmp_path: Path, folder: Path) -> Path:
    return tmp_path / "out"


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def inside(out: Path) -> dict[str, str]:
    """Everything that was collected, links as what they say."""
    return {
        os.path.relpath(path, out): f"-> {os.readlink(path)}" if path.is_symlink() else path.read_text()
        for path in sorted(out.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_of_a_folder_what_is_new_or_changed_is_taken(folder: Path, out: Path) -> None:
    put(folder / "runs/old.txt", "old")
    put(folder / "runs/deep/touched.txt", "before")
    outputs = DeclaredOutputs(str(folder), ["runs/"])
    put(folder / "runs/deep/touched.txt", "after!")
    put(folder / "runs/deep/er/new.txt", "new")
    put(folder / "elsewhere.txt", "not declared")
    assert outputs.collect(str(out)) == CollectedOutputs()
    assert inside(out) == {"runs/deep/touched.txt": "after!", "runs/deep/er/new.txt": "new"}
    assert (folder / "runs/deep/er/new.txt").exists()


def test_a_file_that_is_declared_by_its_name_is_taken_as_it_is(folder: Path, out: Path) -> None:
    put(folder / "model.bin", "made last week, still right")
    assert DeclaredOutputs(str(folder), ["model.bin"]).collect(str(out)) == CollectedOutputs()
    assert inside(out) == {"model.bin": "made last week, still right"}


def test_a_file_rewritten_with_bytes_of_the_same_length_is_new(folder: Path, out: Path) -> None:
    path = put(folder / "runs/a", "one")
    os.utime(path, ns=(1, 1))
    outputs = DeclaredOutputs(str(folder), ["runs"])
    path.write_text("two")
    outputs.collect(str(out))
    assert inside(out) == {"runs/a": "two"}


def test_what_is_missing_and_what_is_stale_is_said(folder: Path, out: Path) -> None:
    put(folder / "runs/old.txt", "old")
    (folder / "empty").mkdir()
    collected = DeclaredOutputs(str(folder), ["runs", "none", "empty"]).collect(str(out))
    assert collected == CollectedOutputs(missing=("none", "empty"), stale=("runs",))
    assert inside(out) == {}


def test_outputs_within_one_another_are_taken_once(folder: Path, out: Path) -> None:
    outputs = DeclaredOutputs(str(folder), ["runs", "runs/a", "./runs/a", "runs/"])
    put(folder / "runs/a", "a")
    assert outputs.collect(str(out)) == CollectedOutputs()
    assert inside(out) == {"runs/a": "a"}


def test_what_was_also_written_to_the_result_is_named_and_not_replaced(folder: Path, out: Path) -> None:
    outputs = DeclaredOutputs(str(folder), ["a.txt", "runs"])
    put(folder / "a.txt", "declared")
    put(folder / "runs/b", "b")
    put(out / "a.txt", "direct")
    assert outputs.collect(str(out)) == CollectedOutputs(twice=("a.txt",))
    assert inside(out)["a.txt"] == "direct"


def test_nothing_is_written_through_a_link_that_the_program_made_in_its_result(
    folder: Path, out: Path, tmp_path: Path
) -> None:
    outputs = DeclaredOutputs(str(folder), ["runs"])
    put(folder / "runs/b", "b")
    (tmp_path / "precious").mkdir()
    (out / "runs").symlink_to(tmp_path / "precious")
    assert outputs.collect(str(out)).twice == ("runs/b",)
    assert not list((tmp_path / "precious").iterdir())
    out.rename(tmp_path / "moved")
    out.symlink_to(tmp_path / "precious")
    assert outputs.collect(str(out)) == CollectedOutputs()
    assert not list((tmp_path / "precious").iterdir())
    out.unlink()
    assert outputs.collect(str(out)) == CollectedOutputs()
    assert not out.exists()


def test_links_are_taken_as_links_and_nobody_walks_through_them(folder: Path, out: Path) -> None:
    outputs = DeclaredOutputs(str(folder), ["runs"])
    put(folder / "runs/one/a", "a")
    (folder / "runs/latest").symlink_to("one")
    (folder / "runs/absolute").symlink_to(folder / "runs/one/a")
    (folder / "runs/one/up").symlink_to(folder / "runs/one")
    (folder / "runs/outward").symlink_to("/etc")
    (folder / "runs/dangling").symlink_to("nothing")
    assert outputs.collect(str(out)) == CollectedOutputs()
    assert inside(out) == {
        "runs/one/a": "a",
        "runs/latest": "-> one",
        "runs/absolute": "-> one/a",
        "runs/one/up": "-> .",
        "runs/outward": "-> /etc",
        "runs/dangling": "-> nothing",
    }


def test_a_link_that_its_owner_laid_to_a_larger_disk_is_followed(folder: Path, out: Path, tmp_path: Path) -> None:
    put(tmp_path / "large/runs/old", "old")
    (folder / "runs").symlink_to(tmp_path / "large/runs")
    outputs = DeclaredOutputs(str(folder), ["runs"])
    put(folder / "runs/deep/new", "new")
    assert outputs.collect(str(out)) == CollectedOutputs()
    assert inside(out) == {"runs/deep/new": "new"}


def test_a_link_that_the_program_laid_itself_is_not_followed(folder: Path, out: Path, tmp_path: Path) -> None:
    put(tmp_path / "elsewhere/secret", "secret")
    outputs = DeclaredOutputs(str(folder), ["runs"])
    (folder / "runs").symlink_to(tmp_path / "elsewhere")
    outputs.collect(str(out))
    assert inside(out) == {"runs": f"-> {tmp_path}/elsewhere"}


def test_pipes_and_sockets_are_no_results(folder: Path, out: Path) -> None:
    outputs = DeclaredOutputs(str(folder), ["runs"])
    put(folder / "runs/a", "a")
    os.mkfifo(folder / "runs/pipe")
    assert outputs.collect(str(out)) == CollectedOutputs()
    assert inside(out) == {"runs/a": "a"}


def test_a_folder_that_vanished_is_missing(folder: Path, out: Path) -> None:
    outputs = DeclaredOutputs(str(folder), ["runs"])
    folder.rmdir()
    assert outputs.collect(str(out)).missing == ("runs",)


def test_a_full_disk_is_no_space_left(folder: Path, tmp_path: Path) -> None:
    outputs = DeclaredOutputs(str(folder), ["big"])
    put(folder / "big", "x" * 2**20)
    with small_disk(tmp_path / "disk", "size=64k") as disk, pytest.raises(NoSpace):
        outputs.collect(str(disk))


@pytest.mark.parametrize("text", ["", ".", "..", "../x", "/etc", "a/../..", "./../x", "a\0b"])
def test_an_output_lies_below_the_programs_folder(text: str) -> None:
    with pytest.raises(BadInput, match="can't be a declared output"):
        checked_output(text)


@pytest.mark.parametrize(("text", "path"), [("runs/", "runs"), ("./a//b/", "a/b"), ("a/../b", "b"), ("..a", "..a")])
def test_an_output_has_one_name(text: str, path: str) -> None:
    assert checked_output(text) == path


def test_two_programs_never_collect_from_one_place_at_once(tmp_path: Path) -> None:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    (first,) = output_locks(str(tmp_path), str(tmp_path / "work"), ["runs/"])
    (elsewhere,) = output_locks(str(tmp_path), str(tmp_path / "work" / "sub"), ["runs"])
    (again,) = output_locks(str(tmp_path), str(tmp_path / "work"), ["./runs"])
    with first:
        with elsewhere:
            pass
        with pytest.raises(LockHeld):
            again.acquire(wait_s=0.0)
    with again:
        pass


def test_links_that_lead_within_the_result_by_its_full_name_are_told_from_where_they_lie(
    out: Path, tmp_path: Path
) -> None:
    put(out / "ckpt-9/model", "9")
    (out / "deep/er").mkdir(parents=True)
    (tmp_path / "near").symlink_to(out)
    leads: dict[str, Path | str] = {
        "latest": out / "ckpt-9",
        "deep/er/model": out / "ckpt-9/model",
        "deep/top": out,
        "odd": f"{out}//ckpt-9/./model",
        "broken": out / "none",
        "near": Path("ckpt-9"),
        "beside": f"{out}-2/x",
        "outside": Path("/etc/hostname"),
    }
    for name, leads_to in leads.items():
        (out / name).symlink_to(leads_to)
    (out / "through").symlink_to(tmp_path / "near/ckpt-9")
    assert tidy_out(str(out)) == {}
    assert {name: os.readlink(out / name) for name in (*leads, "through")} == {
        "latest": "ckpt-9",
        "deep/er/model": "../../ckpt-9/model",
        "deep/top": "..",
        "odd": "ckpt-9/model",
        "broken": "none",
        "near": "ckpt-9",
        "beside": f"{out}-2/x",
        "outside": "/etc/hostname",
        "through": str(tmp_path / "near/ckpt-9"),
    }


def test_a_result_that_is_reached_through_a_link_has_two_full_names(out: Path, tmp_path: Path) -> None:
    (tmp_path / "near").symlink_to(tmp_path)
    for name, home in (("one", out), ("two", tmp_path / "near" / "out")):
        (out / name).symlink_to(home / "model")
    assert tidy_out(str(tmp_path / "near" / "out")) == {}
    assert (os.readlink(out / "one"), os.readlink(out / "two")) == ("model", "model")


def test_what_is_neither_a_file_a_folder_nor_a_link_is_removed_and_named(out: Path) -> None:
    put(out / "deep/model", "1")
    os.mkfifo(out / "deep/pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(out / "s"))
    assert list(tidy_out(str(out))) == ["deep/pipe", "s"]
    assert inside(out) == {"deep/model": "1"}


def test_links_of_wandb_to_its_logs_outside_are_removed_and_no_others(out: Path, tmp_path: Path) -> None:
    log = tmp_path / "home/core-debug.log"
    put(log, "text")
    links: dict[str, Path | str] = {
        "wandb/run-1/logs/debug-core.log": log,
        "wandb/latest-run": "run-1",
        "model.log": log,
        "wandb/m.pt": log,
    }
    for name, leads_to in links.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).symlink_to(leads_to)
    assert tidy_out(str(out)) == {"wandb/run-1/logs/debug-core.log": "it is a link to a log outside"}
    assert {name for name in links if (out / name).is_symlink()} == {"wandb/latest-run", "model.log", "wandb/m.pt"}
    assert log.read_text() == "text"


def test_nothing_outside_is_tidied(out: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (out / "up").symlink_to(tmp_path)
    assert tidy_out(str(out)) == {}
    out.rename(tmp_path / "moved")
    assert tidy_out(str(out)) == {}
    out.symlink_to(tmp_path)
    assert tidy_out(str(out)) == {}
    assert (tmp_path / "pipe").exists()
