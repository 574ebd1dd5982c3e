"""Data at a path of a program's folder: names that are paths, conflicts with the code, links in a workspace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.cli.run import read_data
from stoker.core.digests import Digest, Tree, TreeEntry
from stoker.core.errors import BadInput, Usage
from stoker.core.job import InputKind, JobInput
from stoker.host.folders import placed_path
from stoker.jobs.pack.code_tree import Shipment
from stoker.jobs.pack.data_inputs import refuse_replaced
from stoker.jobs.request import JobRequest
from stoker.worker.preparation import workspaces
from stoker.worker.preparation.workspaces import place_data
from tests.unit.jobs.conftest import Office

OUTSIDE = ["/etc/x", "../x", "a/../../x", ".", "./", "", "a\nb/c", "a:b/c", "a\\b/c", "con/x", "/", "..", "a/\ud800"]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("data/corpus", "data/corpus"),
        ("data/corpus/", "data/corpus"),
        ("./data//corpus", "data/corpus"),
        ("./train.bin", "./train.bin"),
        ("data/", "./data"),
        ("a/../b/c", "b/c"),
        ("dätä/übung 1", "dätä/übung 1"),
    ],
)
def test_a_path_has_one_form_and_a_slash(text: str, path: str) -> None:
    assert placed_path(text) == path == placed_path(path)


@pytest.mark.parametrize("text", OUTSIDE, ids=ascii)
def test_a_path_that_leads_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="data can't be placed at"):
        placed_path(text)


def test_the_option_takes_paths_and_variables() -> None:
    words = ["./data/x=../corpus", "DATA=a=b", "./rows.csv=stoker:rows"]
    assert read_data(words) == {"data/x": "../corpus", "DATA": "a=b", "./rows.csv": "stoker:rows"}
    for odd in ("data/x", "data/x=", "=x", "a-b=x", "train.bin=x"):
        with pytest.raises(Usage, match="not PATH=SOURCE"):
            read_data([odd])
    with pytest.raises(Usage, match="already a"):
        read_data(["a/b=a", "./a/b=b"])


def digest(text: str) -> Digest:
    return Digest(f"{ord(text[0]):064x}")


def tree(**files: str) -> Tree:
    return Tree(tuple(TreeEntry(path.replace("__", "/"), 1, digest(text)) for path, text in sorted(files.items())))


def refuse(code: Tree | None, where: str, data: Tree, kind: InputKind = InputKind.TREE, *, folder: str = "") -> None:
    one = JobInput(where=where, kind=kind, tree=data.digest(), name="x")
    shipment = Shipment(what="x", tree=data, digest=data.digest(), root="")
    refuse_replaced(code, folder, [one], [shipment])


def test_data_may_lie_beside_files_of_the_code_and_repeat_them_but_not_replace_them() -> None:
    code = tree(data__prepare="p", train="t")
    refuse(code, "at:./data", tree(prepare="p", rows="r"))
    refuse(code, "at:data/rows", tree(x="r"), InputKind.FILE)
    refuse(code, "env:DATA", tree(prepare="other"))
    for where, data, kind, replaced in (
        ("at:./data", tree(prepare="other"), InputKind.TREE, "data/prepare"),
        ("at:./data", tree(x="r"), InputKind.FILE, "data"),
        ("at:./train", tree(rows="r"), InputKind.TREE, "train"),
        ("at:data/prepare/deep", tree(rows="r"), InputKind.TREE, "data/prepare"),
        ("at:./train", tree(x="other"), InputKind.FILE, "train"),
    ):
        with pytest.raises(BadInput, match=f" would replace {replaced}, "):
            refuse(code, where, data, kind)
    with pytest.raises(BadInput, match="sub/train"):
        refuse(tree(sub__train="t"), "at:./train", tree(x="o"), InputKind.FILE, folder="sub")
    with pytest.raises(BadInput, match="--in-place makes no copy"):
        refuse(None, "at:./data", tree(rows="r"))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "workspace"
    (workspace / "sub" / "data").mkdir(parents=True)
    (workspace / "sub" / "data" / "prepare.py").write_text("code")
    (workspace / "sub" / "away").symlink_to(tmp_path)
    return workspace


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    corpus = tmp_path / "corpus"
    (corpus / "deep").mkdir(parents=True)
    (corpus / "rows.bin").write_text("rows")
    (corpus / "deep" / "more.bin").write_text("more")
    for path in (corpus / "rows.bin", corpus / "deep" / "more.bin"):
        path.chmod(0o444)
    return corpus


def test_small_data_is_a_copy_that_a_program_may_change(workspace: Path, corpus: Path) -> None:
    (corpus / "prepare.py").write_text("code")
    (corpus / "same").symlink_to("rows.bin")
    place_data(str(workspace), "sub", "./data", str(corpus))
    data = workspace / "sub" / "data"
    assert sorted(os.listdir(data)) == ["deep", "prepare.py", "rows.bin", "same"]
    assert (data / "deep" / "more.bin").read_text() == "more"
    (data / "deep" / "labels.cache").write_text("written")
    (data / "same").write_text("changed")
    assert (data / "rows.bin").read_text() == "changed"
    assert (corpus / "rows.bin").read_text() == "rows"
    assert sorted(os.listdir(corpus / "deep")) == ["more.bin"]
    place_data(str(workspace), "sub", "data/one.bin", str(corpus / "deep" / "more.bin"))
    assert (data / "one.bin").read_text() == "more"


def test_large_data_is_linked_in_real_folders(workspace: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspaces, "_MOST_COPIED_BYTES", 5)
    place_data(str(workspace), "sub", "data/deep", str(corpus))
    data = workspace / "sub" / "data" / "deep"
    assert (data / "rows.bin").readlink() == corpus / "rows.bin"
    assert not (data / "deep").is_symlink()
    (data / "deep" / "more.bin").unlink()
    assert (corpus / "deep" / "more.bin").exists()


def test_an_empty_folder_is_placed_too(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    place_data(str(workspace), "", "a/b", str(tmp_path / "empty"))
    assert (workspace / "a" / "b").is_dir()


@pytest.mark.parametrize("place", [*OUTSIDE, "away/x", "./away", "data/prepare.py", "data/prepare.py/x"], ids=ascii)
def test_nothing_is_written_out_of_the_workspace_or_over_the_code(workspace: Path, corpus: Path, place: str) -> None:
    before = sorted(corpus.parent.rglob("*"))
    with pytest.raises(BadInput):
        place_data(str(workspace), "sub", place, str(corpus))
    assert sorted(corpus.parent.rglob("*")) == before
    assert (workspace / "sub" / "data" / "prepare.py").read_text() == "code"


def test_without_a_copy_of_the_code_nothing_is_placed(corpus: Path) -> None:
    with pytest.raises(BadInput, match="no copy"):
        place_data("", "", "data/x", str(corpus))


def test_a_program_that_runs_here_needs_its_data_in_place(office: Office, tmp_path: Path) -> None:
    folder = Path(office.builder.folder)
    source = tmp_path / "elsewhere"
    source.mkdir()
    (source / "rows").write_text("rows")
    request = JobRequest(program=("true",), data={"data/x": str(source), "OTHER": str(source)})
    with pytest.raises(BadInput, match="nothing is there"):
        office.builder.build(request)
    (folder / "data" / "x").mkdir(parents=True)
    with pytest.raises(BadInput, match="other data is there"):
        office.builder.build(request)
    (folder / "data" / "x" / "rows").write_text("rows")
    build = office.builder.build(request)
    (node,) = build.plan.nodes
    assert node.args["data"] == {"data/x": str(source), "OTHER": str(source)}
    with pytest.raises(BadInput, match="no file or folder"):
        office.builder.build(JobRequest(program=("true",), data={"data/x": "stoker:rows"}))
