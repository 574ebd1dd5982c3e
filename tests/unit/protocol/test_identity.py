"""What runs is what the id was made from: arguments and inputs held against the identity, without a recipe."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.digests import Digest, Tree, TreeEntry
from stoker.core.frozen import changed
from stoker.core.job import JobSpec, job_id
from stoker.protocol.job_checks import found_args, identity_fault, unproven_args
from stoker.protocol.job_messages import JOB_BODY

A, B, C = (digit * 64 for digit in "abc")
FILE = Tree((TreeEntry("rows.csv", 7, Digest(A)),)).digest()


def made(identity: dict[str, Any], args: dict[str, Any], *inputs: dict[str, Any], recipe: str = "r/x") -> JobSpec:
    id = job_id(recipe=recipe, schema_version=1, args=identity)
    order = JOB_BODY.validate_python(
        {"id": id, "name": "n", "recipe": recipe, "identity": identity, "args": args, "inputs": inputs}
    )
    return JOB_BODY.validate_json(JOB_BODY.dump_json(order))


def fault(*said: Any, **more: Any) -> str:
    order = made(*said, **more)
    return identity_fault(order)


def tree(where: str, digest: str) -> dict[str, Any]:
    return {"where": where, "kind": "tree", "tree": digest}


@pytest.mark.parametrize(
    ("identity", "args"),
    [
        ({"lr": 0.1, "n": 3, "on": True, "no": None, "t": "x"}, {"lr": 0.1, "n": 3, "on": True, "no": None, "t": "x"}),
        ({"lr": float("nan"), "z": -0.0}, {"lr": float("nan"), "z": -0.0}),
        ({"a": [1, [2, {"b": "c"}]]}, {"a": [1, [2, {"b": "c"}]]}),
        ({"lr": 1.0}, {"lr": 1.0, "threads": 4, "a.verbose": True}),
        ({"path": "sub/rows.txt"}, {"path": "/home/ann/project/sub/rows.txt"}),
        ({"path": "../rows.txt"}, {"path": "/home/ann/rows.txt"}),
        ({"path": "~/rows.txt"}, {"path": "/home/ann/rows.txt"}),
        ({"params": {"content": "text"}}, {"params": {"content": "text"}}),
    ],
    ids=str,
)
def test_what_an_honest_order_holds_agrees(identity: dict[str, Any], args: dict[str, Any]) -> None:
    assert fault(identity, args) == ""


@pytest.mark.parametrize(
    ("identity", "args"),
    [
        ({"n": 1}, {"n": 2}),
        ({"n": 1}, {"n": 1.0}),
        ({"n": 1}, {"n": True}),
        ({"z": 0.0}, {"z": -0.0}),
        ({"t": "x"}, {"t": None}),
        ({"t": "x"}, {}),
        ({"a": [1, 2]}, {"a": [1]}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"env": {}}, {"env": {"LD_PRELOAD": "/tmp/x.so"}}),
        ({"env": {"A": "1", "B": "2"}}, {"env": {"A": "1"}}),
        ({"model": {"depth": 3}}, {"model": {"depth": 3, "verbose": True}}),
        ({"path": "rows.txt"}, {"path": "/home/eve/other.txt"}),
        ({"path": "rows.txt"}, {"path": "elsewhere/rows.txt"}),
        ({"path": "/data/rows.txt"}, {"path": "/evil/data/rows.txt"}),
        ({"dataset": "imdb"}, {"dataset": "/home/eve/imdb"}),
        ({"path": "."}, {"path": "/etc"}),
        ({"path": "../.."}, {"path": "/etc"}),
        ({"path": ""}, {"path": "/etc/"}),
        ({"params": {"content": "text"}}, {"params": "text"}),
        ({"rows": {"content": f"sha256:{A}"}}, {"rows": ["/a"]}),
        ({"(data)": {"DATA": f"tree:{A}"}}, {}),
        ({"project": "p"}, {"folder": "p"}),
    ],
    ids=str,
)
def test_another_argument_than_the_one_in_the_identity_is_a_fault(
    identity: dict[str, Any], args: dict[str, Any]
) -> None:
    assert "the id" in fault(identity, args)


def test_a_file_a_folder_and_a_repository_are_the_inputs_with_their_digests() -> None:
    content = {name: {"content": digest} for name, digest in (("f", f"sha256:{A}"), ("t", f"tree:{B}"))}
    identity: dict[str, Any] = {
        **content,
        "base": {"content": "repo:org/x@1"},
        "many": [content["t"], {"content": f"tree:{C}"}],
    }
    args = {"f": "/a/rows.csv", "t": "/a", "base": "org/x", "many": ["/b", "/c"]}
    file: dict[str, Any] = {"where": "arg:f", "kind": "file", "tree": FILE, "name": "rows.csv", "size_bytes": 7}
    repo: dict[str, Any] = {"where": "arg:base", "kind": "repo", "repo": "org/x@1"}
    good: list[dict[str, Any]] = [file, repo, tree("arg:t", B), tree("arg:many.0", B), tree("arg:many.1", C)]
    assert fault(identity, args, *good) == ""
    assert unproven_args(made(identity, args, *good)) == {}
    for at, forged in (
        (0, {"tree": B}),
        (0, {"size_bytes": 8}),
        (0, {"kind": "tree", "tree": A}),
        (1, {"repo": "org/x@2"}),
        (2, {"tree": C}),
        (3, {"tree": C}),
        (3, {"where": "arg:many.1"}),
        (4, {"where": "arg:many.2"}),
        (4, {"where": "arg:many"}),
        (4, {"where": "env:LD_PRELOAD"}),
    ):
        inputs = [{**one, **forged} if number == at else one for number, one in enumerate(good)]
        order = made(identity, args, *inputs)
        assert identity_fault(order) or "many" in unproven_args(order), forged


def test_files_that_are_no_inputs_are_left_to_the_machine_that_runs_the_job() -> None:
    identity = {"rows": [{"content": f"sha256:{A}"}, {"content": f"sha256:{B}"}], "lr": 0.1}
    order = made(identity, {"rows": ["/a", "/b"], "lr": 0.1})
    assert identity_fault(order) == ""
    assert unproven_args(order) == {"rows": identity["rows"]}


def test_texts_that_became_whole_paths_are_left_to_the_machine_that_has_the_recipe() -> None:
    identity = {"name": "org/name", "same": "a/b", "rows": {"content": f"sha256:{A}"}, "n": 1}
    order = made(identity, {"name": "/tmp/org/name", "same": "a/b", "rows": "/a", "n": 1})
    assert identity_fault(order) == ""
    assert found_args(order) == {"name": "org/name"}


def test_a_programs_data_folder_and_ranks_are_those_of_its_identity() -> None:
    identity = {"argv": ["true"], "(data)": {"DATA": f"tree:{A}"}, "project": "p", "ranks": 2}
    args = {"argv": ["true"], "folder": "p", "ranks": 2, "data": {"DATA": "/d"}, "python": "", "gpus": 1}
    data = tree("env:DATA", A)
    assert fault(identity, args, data, recipe="command") == ""
    for forged in ({"folder": "q"}, {"ranks": 4}, {"ranks": None}, {"data": {"DATA": "/d", "LD_PRELOAD": "/x"}}):
        assert fault(identity, {**args, **forged}, data, recipe="command"), forged
    assert fault(identity, args, recipe="command")
    assert fault(identity, args, tree("env:DATA", B), recipe="command")
    assert fault(identity, args, data, tree("env:LD_PRELOAD", A), recipe="command")
    assert fault({**identity, "(data)": ["DATA"]}, args, recipe="command")


def placed(name: str, *, digest: str = A, code: str = C) -> str:
    order = made({"(data)": {name: f"tree:{A}"}}, {}, tree(f"at:{name}", digest), recipe="command")
    return identity_fault(changed(order, code_tree=code))


def test_placed_data_agrees_with_the_id_and_stays_below_the_copy_of_the_code() -> None:
    assert placed("data/corpus") == placed("./rows.csv") == ""
    assert placed("data/corpus", digest=B) == "input at:data/corpus differs from the data in the id"
    assert "no copy of its code" in placed("data/corpus", code="")
    missing = made({"(data)": {"data/corpus": f"tree:{A}"}}, {}, recipe="command")
    assert identity_fault(missing) == "data data/corpus is part of the id and not among the inputs"


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "./data/x", "data/x/", "a//b", "./.", "a:b/c"])
def test_a_path_that_leads_elsewhere_or_has_another_form_is_refused(name: str) -> None:
    assert placed(name)
