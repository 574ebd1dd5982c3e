from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from stoker.core.errors import BadInput, CorruptBytes
from stoker.store.records import Record
from stoker.store.results import SIDECAR, MaterialisedResult, ResultPart, lay_out, point_last_at
from tests.unit.store.real_stores import BIG, blob_of, commit, contents, files_below, fill, found, key_of, make_store

ONE = {"report.html": b"one", "plots/roc.png": b"r1" * BIG, "plots/more/cm.png": b"c1", "gone.txt": b"g"}
TWO = {"report.html": b"two", "plots/roc.png": b"r2" * BIG, "plots/more/cm.png": b"c1", "new/file": b"n"}


@pytest.fixture
def store(tmp_path):
    made = make_store(tmp_path / "store")
    yield made
    made.close()


@pytest.fixture
def out(tmp_path):
    return tmp_path / "stoker-out" / "gbt"


def lay(store, out: Path, files: dict[str, bytes], *others: tuple[str, dict[str, bytes]]) -> MaterialisedResult:
    parts = [
        ResultPart(
            record=commit(store, (folder, tuple(given.items())), given).record, folder=folder, sidecar={"node": folder}
        )
        for folder, given in (("", files), *others)
    ]
    return lay_out(store, parts, str(out))


def shown(out: Path) -> dict[str, bytes]:
    files = files_below(out)
    files.pop(SIDECAR, None)
    return files


def test_results_are_plain_writable_files_whose_edit_does_not_damage_the_store(store, out):
    laid_out = lay(store, out, ONE)
    assert shown(out) == ONE
    assert laid_out.files == tuple(sorted(ONE))
    for name in ONE:
        assert not (out / name).is_symlink()
        assert stat.S_IMODE((out / name).stat().st_mode) & 0o200
        (out / name).write_bytes(b"edited")
    assert contents(store, found(store, ("", tuple(ONE.items()))).record) == ONE


def test_executables_and_inner_symlinks_arrive_as_such(store, out):
    staging = store.new_staging("x")
    fill(staging, {"tool": b"#" * BIG})
    Path(staging, "tool").chmod(0o755)
    Path(staging, "alias").symlink_to("tool")
    tree, inline = store.take_in(staging)
    part = ResultPart(record=Record.of(key=key_of("t"), tree=tree, inline=inline, body={}), folder="", sidecar={})
    for _ in range(2):
        assert lay_out(store, [part], str(out)).kept_edits == ()
        assert os.access(out / "tool", os.X_OK)
        assert os.readlink(out / "alias") == "tool"


def test_a_second_result_replaces_the_first_and_takes_away_what_is_no_result_any_more(store, out):
    lay(store, out, ONE, ("model", {"weights": b"w" * BIG}))
    laid_out = lay(store, out, TWO)
    assert shown(out) == TWO
    assert laid_out.kept_edits == ()
    assert not (out / "model").exists()


def test_files_that_are_as_they_should_be_are_not_written_again(store, out):
    lay(store, out, ONE)
    before = {path: written(path) for path in [*(out / name for name in ONE), out / SIDECAR]}
    lay(store, out, ONE)
    assert {path: written(path) for path in before} == before


def written(path):
    """Which file it is, and when it was last written; that it was read says nothing."""
    found = path.lstat()
    return found.st_ino, found.st_size, found.st_mode, found.st_mtime_ns, found.st_ctime_ns


def test_the_sidecar_says_what_lies_there(store, out):
    lay(store, out, ONE, ("model", {"weights": b"w"}))
    sidecar = json.loads((out / SIDECAR).read_bytes())
    assert sidecar["v"] == 1
    assert sidecar["artifacts"] == [{"folder": ".", "node": ""}, {"folder": "model", "node": "model"}]
    assert set(sidecar["files"]) == {*ONE, "model/weights"}


def test_a_file_that_was_edited_is_kept_beside_the_new_one_every_time(store, out):
    lay(store, out, ONE)
    (out / "report.html").write_bytes(b"my notes")
    (out / "plots" / "more" / "cm.png").write_bytes(b"mine")
    laid_out = lay(store, out, TWO)
    assert laid_out.kept_edits == ("plots/more/cm.png~", "report.html~")
    (out / "report.html").write_bytes(b"my other notes")
    assert lay(store, out, ONE).kept_edits == ("report.html~2",)
    assert (out / "report.html~").read_bytes() == b"my notes"
    assert (out / "report.html~2").read_bytes() == b"my other notes"
    assert (out / "report.html").read_bytes() == b"one"


def test_an_edit_of_the_same_size_and_time_is_the_only_one_that_can_be_missed(store, out):
    lay(store, out, ONE)
    (out / "report.html").write_bytes(b"ONE")
    os.utime(out / "report.html", (5, 5))
    assert lay(store, out, TWO).kept_edits == ("report.html~",)


def test_an_edited_file_that_is_no_result_any_more_is_kept(store, out):
    lay(store, out, ONE)
    (out / "gone.txt").write_bytes(b"mine now")
    assert lay(store, out, TWO).kept_edits == ("gone.txt~",)
    assert (out / "gone.txt~").read_bytes() == b"mine now"


def test_a_file_that_was_only_touched_counts_as_ours(store, out):
    lay(store, out, ONE)
    for name in ONE:
        os.utime(out / name, (5, 5))
    assert lay(store, out, TWO).kept_edits == ()
    assert shown(out) == TWO


def test_files_that_are_not_ours_are_never_touched(store, out):
    fill(out, {"notes.md": b"n", "plots/mine.png": b"m", "empty/.keep": b""})
    (out / "notes.md").chmod(0o600)
    (out / "link").symlink_to("notes.md")
    before = {path: path.lstat().st_mtime_ns for path in (out / "notes.md", out / "plots" / "mine.png", out / "link")}
    lay(store, out, ONE)
    lay(store, out, TWO)
    lay(store, out, {"only": b"1"})
    assert {path: path.lstat().st_mtime_ns for path in before} == before
    assert shown(out) == {"notes.md": b"n", "plots/mine.png": b"m", "empty/.keep": b"", "only": b"1", "link": b"n"}


def test_a_foreign_file_in_the_way_is_kept_beside(store, out):
    fill(out, {"report.html": b"foreign", "plots": b"a file where a folder is needed", "gone.txt/inside": b"i"})
    laid_out = lay(store, out, ONE)
    assert laid_out.kept_edits == ("gone.txt~", "plots~", "report.html~")
    assert (out / "gone.txt~" / "inside").read_bytes() == b"i"
    assert (out / "report.html~").read_bytes() == b"foreign"
    assert {name: (out / name).read_bytes() for name in ONE} == ONE


def test_a_file_that_happens_to_be_the_same_is_simply_left(store, out):
    fill(out, ONE)
    before = (out / "report.html").stat()
    assert lay(store, out, ONE).kept_edits == ()
    assert (out / "report.html").stat() == before


def test_a_file_becomes_a_folder_and_a_folder_a_file(store, out):
    lay(store, out, {"a": b"1", "b/c": b"2"})
    assert lay(store, out, {"a/x": b"3", "b": b"4"}).kept_edits == ()
    assert shown(out) == {"a/x": b"3", "b": b"4"}


def _planted(out: Path, victim: Path) -> None:
    (out / "plots").symlink_to(victim)


def test_nothing_is_written_through_a_symlink_that_was_planted_for_a_folder(store, out, tmp_path):
    victim = tmp_path / "victim"
    fill(victim, {"roc.png": b"precious", "more/cm.png": b"precious too"})
    out.mkdir(parents=True)
    _planted(out, victim)
    laid_out = lay(store, out, ONE)
    assert laid_out.kept_edits == ("plots~",)
    assert files_below(victim) == {"roc.png": b"precious", "more/cm.png": b"precious too"}
    assert {name: (out / name).read_bytes() for name in ONE} == ONE


def test_nothing_is_removed_through_a_symlink_that_took_a_folders_place(store, out, tmp_path):
    victim = tmp_path / "victim"
    lay(store, out, ONE)
    os.rename(out / "plots", victim)
    _planted(out, victim)
    laid_out = lay(store, out, {"report.html": b"three"})
    assert laid_out.kept_edits == ()
    assert files_below(victim) == {"roc.png": ONE["plots/roc.png"], "more/cm.png": ONE["plots/more/cm.png"]}


def test_a_symlink_planted_for_a_file_is_put_aside_and_its_target_left(store, out, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    out.mkdir(parents=True)
    (out / "report.html").symlink_to(victim)
    (out / SIDECAR).symlink_to(victim)
    assert lay(store, out, ONE).kept_edits == ("report.html~",)
    assert victim.read_bytes() == b"precious"
    assert not (out / SIDECAR).is_symlink()
    assert os.readlink(out / "report.html~") == str(victim)


HOSTILE = [
    "../victim",
    "../../victim",
    "plots/../../victim",
    "./../victim",
    "{victim}",
    "",
    ".",
    "..",
    "/",
    "a\0b",
    SIDECAR,
    "x" * 5000,
    "plots",
]


@pytest.mark.parametrize("path", HOSTILE)
def test_a_hostile_sidecar_makes_us_touch_nothing_outside_its_folder(store, out, tmp_path, path):
    fill(tmp_path, {"victim": b"precious", "stoker-out/victim": b"precious"})
    lay(store, out, ONE)
    path = path.format(victim=tmp_path / "victim")
    sidecar = json.loads((out / SIDECAR).read_bytes())
    info = (tmp_path / "victim").stat()
    digest = "5b7b1f5bb1a4f4f8bdb1d0a2a3f3ff1a" * 2
    sidecar["files"][path] = [[digest, info.st_size, info.st_ino, info.st_mtime_ns]]
    (out / SIDECAR).write_text(json.dumps(sidecar))
    assert lay(store, out, TWO).kept_edits == ()
    assert shown(out) == TWO
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (tmp_path / "stoker-out" / "victim").read_bytes() == b"precious"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"files": 7}',
        b'{"files": {"report.html": 7}}',
        b'{"files": {"report.html": [[1]]}}',
        b'{"files": {"report.html": [["x", [], {}, null]]}}',
        b'{"v": 1, "files": {"report.html": [3, 1700000000]}}',
        b"[" * 100_000,
    ],
)
def test_a_damaged_sidecar_costs_at_most_a_copy(store, out, text):
    lay(store, out, ONE)
    (out / SIDECAR).write_bytes(text)
    assert lay(store, out, ONE).kept_edits == ()
    assert shown(out) == ONE
    (out / SIDECAR).write_bytes(text)
    laid_out = lay(store, out, TWO)
    assert laid_out.kept_edits == ("plots/roc.png~", "report.html~")
    assert {name: (out / name).read_bytes() for name in TWO} == TWO


def test_a_folder_in_the_place_of_the_sidecar_is_put_aside(store, out):
    fill(out, {f"{SIDECAR}/inside": b"?"})
    assert lay(store, out, ONE).kept_edits == (f"{SIDECAR}~",)
    assert lay(store, out, ONE).kept_edits == ()
    assert (out / f"{SIDECAR}~" / "inside").read_bytes() == b"?"


def test_a_result_that_holds_a_sidecar_of_its_own_does_not_disturb_ours(store, out):
    laid_out = lay(store, out, {SIDECAR: b"{}", "a": b"1"}, ("part", {SIDECAR: b"{}"}))
    assert laid_out.files == ("a", f"part/{SIDECAR}")
    assert json.loads((out / SIDECAR).read_bytes())["v"] == 1


def test_a_part_whose_folder_leads_out_is_refused(store, out):
    record = commit(store, "a", ONE).record
    for folder in ("..", "/tmp", "a/../.."):
        with pytest.raises(BadInput):
            lay_out(store, [ResultPart(record=record, folder=folder, sidecar={})], str(out))


def test_half_written_files_of_the_dead_are_removed_and_of_the_living_are_not(store, out):
    fill(
        out,
        {".stoker-tmp-999999999-1-0": b"half", ".stoker-tmp-nonsense": b"half", ".stoker-tmp-1-987654321-0": b"reused"},
    )
    living = f".stoker-tmp-{os.getppid()}-{start_of(os.getppid())}-0"
    fill(out, {living: b"half"})
    lay(store, out, ONE)
    assert [name for name in os.listdir(out) if name.startswith(".stoker-tmp-")] == [living]


def start_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_bytes_that_are_gone_are_named_and_the_old_result_stays(store, out):
    lay(store, out, ONE)
    commit(store, "b", TWO)
    blob_of(store, "b", "plots/roc.png").unlink()
    part = ResultPart(record=found(store, "b").record, folder="", sidecar={})
    with pytest.raises(CorruptBytes, match=r"plots/roc\.png"):
        lay_out(store, [part], str(out))
    assert (out / "plots" / "roc.png").read_bytes() == ONE["plots/roc.png"]
    assert [name for name in os.listdir(out) if name.startswith(".stoker-tmp-")] == []


def test_last_leads_to_the_newest_result_unless_somebody_has_that_name(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        point_last_at(str(tmp_path), name)
        assert os.readlink(tmp_path / "last") == name
    (tmp_path / "last").unlink()
    (tmp_path / "last").mkdir()
    point_last_at(str(tmp_path), "one")
    assert (tmp_path / "last").is_dir()
    assert not (tmp_path / "last").is_symlink()
    (tmp_path / "last").rmdir()
    (tmp_path / "last").symlink_to("/elsewhere")
    point_last_at(str(tmp_path), "one")
    assert os.readlink(tmp_path / "last") == "/elsewhere"
