"""Spare workspaces: the next attempt of the same code takes one, another code does not, none is ever half made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from stoker.store.local_store import LocalStore
from stoker.store.put import put_key
from stoker.store.records import Record
from stoker.store.trees import scan_tree
from stoker.worker.preparation import workspaces as preparation_workspaces
from stoker.worker.preparation.workspaces import Spares, Workspaces


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    store = LocalStore(str(tmp_path / "store"), clock=SystemClock())
    store.open()
    yield store
    store.close()


def _record(store: LocalStore, word: str, count: int = preparation_workspaces.FEWEST_FILES) -> Record:
    staging = Path(store.new_staging("test"))
    (staging / "deep").mkdir()
    for number in range(count):
        (staging / "deep" / f"{number}.py").write_text(f"{word} = {number}\n")
    tree, inline = store.take_in(str(staging))
    made = Record.of(key=put_key(tree.digest()), tree=tree, inline=inline, body={})
    store.publish(made)
    return made


def _made(spare: Spares, tree: str, store: LocalStore, record: Record) -> None:
    making = spare.make_soon(tree, store, record)
    assert making is not None
    making.join(30)


def test_an_attempt_takes_the_spare_of_its_code_and_what_it_changes_stays_its_own(
    store: LocalStore, tmp_path: Path
) -> None:
    folder = tmp_path / "workspaces"
    folder.mkdir()
    record, tree = _record(store, "a"), "a" * 64
    spare = Spares(str(folder), wait_s=0)
    _made(spare, tree, store, record)
    assert spare.take(tree, str(folder / "first"))
    assert scan_tree(str(folder / "first")) == record.tree
    (folder / "first" / "deep" / "0.py").write_text("changed")
    assert not spare.take(tree, str(folder / "second")), "one spare serves one attempt"
    _made(spare, tree, store, record)
    assert spare.take(tree, str(folder / "second"))
    assert scan_tree(str(folder / "second")) == record.tree
    assert (folder / "second").stat().st_mode & 0o777 == 0o700


def test_only_the_last_code_has_a_spare_and_a_sweep_takes_it(store: LocalStore, tmp_path: Path) -> None:
    spare = Spares(str(tmp_path), wait_s=0)
    _made(spare, "a" * 64, store, _record(store, "a"))
    _made(spare, "b" * 64, store, _record(store, "b"))
    assert not spare.take("a" * 64, str(tmp_path / "run"))
    spare.sweep()
    assert not spare.take("b" * 64, str(tmp_path / "run"))
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_code_that_is_gone_from_the_store_leaves_no_half_a_spare(store: LocalStore, tmp_path: Path) -> None:
    record = _record(store, "word" * 2000)
    for entry in list(record.blobs())[10:]:
        Path(store.places.blob(entry.sha256)).unlink()
    spare = Spares(str(tmp_path / "workspaces"), wait_s=0)
    _made(spare, "a" * 64, store, record)
    assert not spare.take("a" * 64, str(tmp_path / "run"))
    assert list((tmp_path / "workspaces").iterdir()) == []


def test_few_files_get_no_spare(store: LocalStore, tmp_path: Path) -> None:
    assert Spares(str(tmp_path)).make_soon("a" * 64, store, _record(store, "a", 3)) is None


def test_a_workspace_comes_from_the_spare_where_there_is_one(store: LocalStore, tmp_path: Path) -> None:
    workspaces = Workspaces(str(tmp_path / "workspaces"), str(tmp_path / "runs"))
    record, tree = _record(store, "a"), "a" * 64
    (tmp_path / "workspaces").mkdir()
    workspaces.spares = Spares(workspaces.folder, wait_s=0)
    _made(workspaces.spares, tree, store, record)
    mark = next((tmp_path / "workspaces").glob(".spare-*")).stat().st_ino
    assert Path(workspaces.make("run", tree, store, record)).stat().st_ino == mark
