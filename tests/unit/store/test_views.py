from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from stoker.core.errors import CorruptBytes
from stoker.store.records import Record
from stoker.store.tree_views import changed_inputs, drop_view, open_view
from stoker.store.trees import scan_tree
from tests.unit.store.real_stores import BIG, blob_of, commit, files_below, fill, key_of, make_store

FILES = {"small": b"s", "big": b"b" * BIG, "deep/er/big": b"d" * BIG, "deep/small": b"t"}
SCRIPT = b"#!/bin/sh\necho ran\n" + b"#" * BIG


@pytest.fixture
def store(tmp_path):
    made = make_store(tmp_path / "store")
    yield made
    made.close()


def commit_with_tool(store) -> Record:
    staging = store.new_staging("x")
    fill(staging, {"tool": SCRIPT, "tiny": b"#!/bin/sh\n", **FILES})
    for name in ("tool", "tiny"):
        Path(staging, name).chmod(0o755)
    Path(staging, "alias").symlink_to("tool")
    tree, inline = store.take_in(staging)
    return store.publish(Record.of(key=key_of("tool"), tree=tree, inline=inline, body={})).record


def test_a_view_shows_the_tree_without_copying_the_big_files(store):
    record = commit(store, "a", FILES).record
    view = open_view(store, record)
    assert files_below(view) == FILES
    assert os.readlink(Path(view, "big")) == str(blob_of(store, "a", "big"))
    assert open_view(store, record) == view


def test_a_view_shows_executables_that_run_and_inner_symlinks(store):
    view = Path(open_view(store, commit_with_tool(store)))
    assert subprocess.run([view / "alias"], capture_output=True, text=True, check=True).stdout == "ran\n"
    assert os.readlink(view / "alias") == "tool"
    assert os.access(view / "tiny", os.X_OK)


def test_an_empty_tree_has_an_empty_view(store):
    assert os.listdir(open_view(store, commit(store, "a", {}).record)) == []


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.unlink()
    path.write_bytes(data)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda view: _flip(view / "small"),
        lambda view: _flip(view / "big"),
        lambda view: (_flip(view / "tool"), (view / "tool").chmod(0o755)),
        lambda view: (view / "tool").chmod(0o644),
        lambda view: (view / "big").unlink(),
        lambda view: (view / "deep" / "small").unlink(),
        lambda view: shutil.rmtree(view / "deep"),
        lambda view: (view / "deep" / "extra").write_bytes(b"!"),
        lambda view: ((view / "alias").unlink(), (view / "alias").symlink_to("small")),
        lambda view: ((view / "small").unlink(), (view / "small").symlink_to("big")),
        lambda view: ((view / "small").unlink(), (view / "small").mkdir()),
        lambda view: (shutil.rmtree(view), view.write_bytes(b"a file")),
        lambda view: (shutil.rmtree(view), view.mkdir()),
        lambda view: (shutil.rmtree(view), view.symlink_to("/")),
    ],
)
def test_a_spoilt_view_is_noticed_and_built_anew(store, spoil):
    record = commit_with_tool(store)
    view = Path(open_view(store, record))
    whole = scan_tree_of_view(view)
    assert changed_inputs(store, record) == []
    spoil(view)
    assert changed_inputs(store, record)
    assert open_view(store, record) == str(view)
    assert scan_tree_of_view(view) == whole
    assert changed_inputs(store, record) == []
    assert os.listdir(store.places.views) == [record.digest]


def scan_tree_of_view(view: Path) -> dict[str, tuple[bytes, bool]]:
    return {
        str(path.relative_to(view)): (path.read_bytes(), os.access(path, os.X_OK))
        for path in view.rglob("*")
        if path.is_file()
    }


def test_bytes_that_are_gone_are_named_before_anybody_reads_the_view(store):
    record = commit(store, "a", FILES).record
    open_view(store, record)
    blob_of(store, "a", "big").unlink()
    with pytest.raises(CorruptBytes, match="big: its bytes are gone or damaged"):
        open_view(store, record)


def test_a_stage_that_edits_a_blob_through_its_view_is_found_out(store):
    record = commit(store, "a", FILES).record
    view = Path(open_view(store, record))
    blob_of(store, "a", "big").chmod(0o644)
    with open(view / "big", "r+b") as file:
        file.write(b"!")
    assert changed_inputs(store, record) == ["big"]
    assert store.lookup(key_of("a")).lost == ("big",)


def test_a_stage_is_not_blamed_when_another_process_makes_its_input_young_again(store, tmp_path):
    record = commit(store, "a", FILES).record
    open_view(store, record)
    other = make_store(tmp_path / "store")
    commit(other, "b", FILES)
    other.close()
    assert changed_inputs(store, record) == []


def test_a_stage_is_not_blamed_when_its_view_and_bytes_are_pruned_under_it(store):
    record = commit(store, "a", FILES).record
    view = open_view(store, record)
    drop_view(view)
    blob_of(store, "a", "big").unlink()
    assert changed_inputs(store, record) == []


def test_a_reader_that_has_a_file_of_a_view_open_keeps_it_when_the_view_goes(store):
    record = commit(store, "a", FILES).record
    view = open_view(store, record)
    with open(Path(view, "small"), "rb") as small, open(Path(view, "big"), "rb") as big:
        drop_view(view)
        blob_of(store, "a", "big").unlink()
        assert (small.read(), big.read()) == (FILES["small"], FILES["big"])


def test_dropping_a_view_that_is_not_there_is_nothing(store):
    drop_view(store.places.view(key_of("none")))


def test_a_copied_store_makes_its_own_views(tmp_path):
    store = make_store(tmp_path / "one")
    record = commit(store, "a", FILES).record
    open_view(store, record)
    store.close()
    shutil.copytree(tmp_path / "one", tmp_path / "two", symlinks=True)
    shutil.rmtree(tmp_path / "one")
    assert files_below(open_view(make_store(tmp_path / "two"), record)) == FILES


def test_a_view_has_the_digest_of_its_record_once_links_are_followed(store, tmp_path):
    record = commit(store, "a", FILES).record
    shutil.copytree(open_view(store, record), tmp_path / "copy")
    assert scan_tree(str(tmp_path / "copy")).digest() == record.digest
