"""What jobs read, found when they are submitted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.core.errors import BadInput, LocalFile, NotFound, StokerError
from stoker.core.frozen import changed
from stoker.core.job import InputKind
from stoker.jobs.pack.data_inputs import DataInputs
from stoker.jobs.request import DataPlaces, FoundRepository
from stoker.store.prune import resolve
from tests.unit.jobs.conftest import Office
from tests.unit.worker.benches import kept_tree

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def found(text: str) -> FoundRepository:
    if not text.startswith("org/"):
        raise NotFound(f"no repository {text}")
    return FoundRepository(repo="org/name", commit=COMMIT, files=3, size_bytes=1000)


@pytest.fixture
def inputs(office: Office) -> DataInputs:
    places = DataPlaces(host="desk", find_kept=lambda text: resolve(office.lab.store, text)[0], find_repository=found)
    return DataInputs(changed(office.builder, folder=str(office.folder), data=places))


def test_a_folder_and_a_file_are_known_by_what_they_hold_and_never_by_where(office: Office, inputs: DataInputs):
    for name in ("one", "two"):
        (office.folder / name / "deep").mkdir(parents=True)
        (office.folder / name / "deep" / "a").write_text("same")
    (office.folder / "f.csv").write_text("1,2")
    first, second = (inputs.of("env:DATA", name) for name in ("one", "two"))
    assert first.digest == second.digest == office.builder.digest(str(office.folder / "one"))
    assert (first.body.kind, first.body.host, first.body.files) == (InputKind.TREE, "desk", 1)
    file = inputs.of("env:F", "f.csv")
    assert (file.body.kind, file.body.name, file.digest) == (
        InputKind.FILE, "f.csv", office.builder.digest(str(office.folder / "f.csv")),
    )  # fmt: skip
    assert file.body.path == os.path.realpath(office.folder / "f.csv")
    assert [one.what for one in inputs.shipments] == ["DATA", "F"], "the same tree goes once"
    assert inputs.at("arg:data", file.body.path).body.where == "arg:data"


def test_a_thing_of_the_store_is_named_by_its_digest(office: Office, inputs: DataInputs):
    (office.folder / "set").mkdir()
    (office.folder / "set" / "a").write_text("1")
    tree = kept_tree(office.folder / "set", office.lab.store)
    by_path = inputs.of("env:DATA", "set")
    for text in (f"stoker:{tree}", tree, f"stoker:{tree[:16]}"):
        kept = inputs.of("env:DATA", text)
        assert (kept.digest, kept.body.tree, kept.body.path) == (by_path.digest, tree, "")
    elsewhere = inputs.of("env:DATA", f"stoker:{'e' * 64}")
    assert (elsewhere.body.tree, elsewhere.shipment) == ("e" * 64, None)
    with pytest.raises(NotFound):
        inputs.of("env:DATA", "stoker:nobody")


def test_a_repository_is_the_commit_that_it_is_now(inputs: DataInputs):
    repository = inputs.of("env:BASE", "org/name@main")
    assert (repository.body.kind, repository.body.repo) == (InputKind.REPO, f"org/name@{COMMIT}")
    assert (repository.digest, repository.shipment) == (f"repo:org/name@{COMMIT}", None)
    with pytest.raises(BadInput, match="no file or folder other/name here, and as a repository of the hub"):
        inputs.of("env:BASE", "other/name")


@pytest.mark.parametrize("text", ["nothing", "./org/name", "here/name", "/nowhere/at/all"])
def test_a_path_that_leads_nowhere_is_no_repository(office: Office, inputs: DataInputs, text: str):
    (office.folder / "here").mkdir()
    with pytest.raises(LocalFile, match="no file or folder"):
        inputs.of("env:DATA", text)


def test_what_no_tree_can_keep_is_refused(office: Office, inputs: DataInputs):
    (office.folder / "odd").mkdir()
    (office.folder / "odd" / "out").symlink_to("/etc")
    with pytest.raises(StokerError, match="leads out"):
        inputs.of("env:DATA", "odd")


def test_data_is_shown_while_it_is_listed_and_read_and_is_known_the_second_time(office: Office, tmp_path: Path):
    import contextlib

    file = tmp_path / "large"
    file.write_bytes(b"x" * 3000)
    os.utime(file, (1, 1))
    read: list[object] = []

    @contextlib.contextmanager
    def reading(what: str, size_bytes: int | None):
        read.append((what, size_bytes))
        yield read.append

    builder = changed(office.builder, data=DataPlaces(reading=reading))
    DataInputs(builder).of("env:DATA", str(file))
    assert read == [("listing DATA", None), 3000, ("reading DATA", 3000), 3000]
