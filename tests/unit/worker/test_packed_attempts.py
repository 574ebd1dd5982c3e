"""A packed program on the machine that runs it: what it goes on from has no path, and its own interpreter is found."""

from __future__ import annotations

import builtins
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.core.device import GIB
from stoker.core.digests import Digest, Tree, TreeEntry
from stoker.core.errors import HashMismatch, NoPermission, Usage
from stoker.core.frozen import changed
from stoker.core.job import JobSpec
from stoker.core.leases import AttemptToken
from stoker.engine.action import Action, StageFacts
from stoker.engine.plan import PlanNode
from stoker.engine.scratch import resume_key
from stoker.jobs.builder import JobBuild
from stoker.jobs.request import JobRequest
from stoker.worker.assignment import Assignment
from stoker.worker.attempt_child import build_assignment
from stoker.worker.preparation.input_check import python_beside, refusal_by_tree, refusal_of
from stoker.worker.worker_options import read_accepted
from tests.fakes.grants import grant_of
from tests.unit.jobs.conftest import Office

PROJECT = "f" * 40


def assigned(
    office: Office,
    workspace: Path,
    *,
    identity: dict[str, Any] | None = None,
    readable: tuple[str, ...] | None = None,
    granted: dict[str, Any] | None = None,
    **args: Any,
) -> JobBuild:
    workspace.mkdir(parents=True, exist_ok=True)
    spec = JobSpec(
        id="a" * 64,
        name="train",
        recipe="command",
        args={"argv": ["sh", "-c", "true"], "folder": PROJECT, **args},
        identity=identity or {},
    )
    token = AttemptToken(job=spec.id, attempt=1, epoch=1, generation=1)
    builder = changed(office.builder, readable=readable)
    granted = granted or {}
    return build_assignment(
        builder, Assignment(spec=spec, token=token, folder=str(workspace), run="run", lease_path="", **granted)
    )


def key_of(order: JobBuild) -> str:
    node = only(order)
    facts = StageFacts(stage=node.stage.name, version=1, output="", code={}, env={})
    identity = node.stage.args.identity(node.args, lambda _: "digest")
    return resume_key(node.stage, Action(facts=facts, facts_digest=facts.digest(), inputs=(), args=identity))


def only(order: JobBuild) -> PlanNode:
    (node,) = order.plan.nodes
    return node


def test_a_checkpoint_is_found_again_in_another_workspace(office: Office, tmp_path: Path) -> None:
    first, second = (assigned(office, tmp_path / name) for name in ("one", "two"))
    assert key_of(first) == key_of(second)
    assert [only(one).args["workspace"] for one in (first, second)] == [str(tmp_path / "one"), str(tmp_path / "two")]
    other = assigned(office, tmp_path / "three", folder="e" * 40)
    assert key_of(other) != key_of(first)


@pytest.mark.parametrize(
    ("granted", "needs"),
    [
        ({"devices": ["GPU-1"], "is_shared": True}, (1, 8.0, True)),
        ({"devices": ["GPU-1"], "is_shared": False}, (1, 8.0, False)),
        ({"devices": ["GPU-1", "GPU-2"], "is_shared": False}, (2, 8.0, False)),
        ({"devices": [], "is_shared": False}, (0, 0.0, False)),
    ],
    ids=["shared", "alone", "two alone", "on the CPU"],
)
def test_a_program_shares_its_device_as_it_was_granted_whatever_it_allows(
    office: Office, tmp_path: Path, granted: dict[str, Any], needs: tuple[int, float, bool]
) -> None:
    granted = {"vram_bytes": 8 * GIB, **granted}
    made = only(assigned(office, tmp_path / "one", granted=granted, vram="8G", shares=True, gpus=1)).needs
    assert (made.gpu, made.vram_gib, made.shares) == needs


def test_a_file_that_is_not_what_the_id_names_starts_nothing(office: Office, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("1,2")
    identity = {"inputs": [{"content": f"sha256:{hashlib.sha256(b'1,2').hexdigest()}"}]}
    assigned(office, tmp_path / "one", identity=identity, inputs=[str(rows)])
    rows.write_text("3,4")
    with pytest.raises(HashMismatch, match="not what the job was submitted with"):
        assigned(office, tmp_path / "two", identity=identity, inputs=[str(rows)])


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Have every look at or below a path fail the test."""
    closed: list[str] = []

    def guarded(name: str) -> None:
        real = getattr(os, name)

        def act(path: Any, *more: Any, **named: Any) -> Any:
            if isinstance(path, str | os.PathLike):
                assert not any(os.path.abspath(path).startswith(one) for one in closed), (name, path)
            return real(path, *more, **named)

        monkeypatch.setattr(os, name, act)

    for name in ("stat", "lstat", "open", "scandir", "listdir"):
        guarded(name)
    real_open = builtins.open

    def opened(path: Any, *more: Any, **named: Any) -> Any:
        assert not any(str(path).startswith(one) for one in closed), path
        return real_open(path, *more, **named)

    monkeypatch.setattr(builtins, "open", opened)
    return lambda path: closed.append(str(path))


@pytest.mark.parametrize("lies_there", ["a file", "a folder", "nothing"])
@pytest.mark.parametrize("is_digested", [True, False], ids=["by its digest", "by its name"])
def test_a_job_of_another_user_learns_nothing_of_files_that_did_not_come_with_it(
    office: Office, tmp_path: Path, untouched: Callable[[Path], None], lies_there: str, is_digested: bool
) -> None:
    secret, workspace = tmp_path / "secret", tmp_path / "one"
    if lies_there == "a file":
        secret.write_text("of root alone")
    elif lies_there == "a folder":
        secret.mkdir()
        (secret / "keys").write_text("of root alone")
    untouched(secret)
    content = {"content": f"sha256:{hashlib.sha256(b'of root alone').hexdigest()}"}
    identity = {"inputs": [content]} if is_digested else {}
    with pytest.raises(NoPermission) as caught:
        assigned(office, workspace, identity=identity, readable=(str(workspace),), inputs=[str(secret)])
    assert caught.value.message == f"{secret} did not come with the job, and jobs run as other users here"


def test_words_of_another_users_program_name_only_files_that_came_with_it(
    office: Office, tmp_path: Path, untouched: Callable[[Path], None]
) -> None:
    workspace, secrets = tmp_path / "one", tmp_path / "secrets"
    workspace.mkdir()
    secrets.mkdir()
    for name in ("keys.json", "run.sh", "tool.py"):
        (secrets / name).write_text("import os")
    (workspace / "train.sh").write_text(f"sh {secrets}/run.sh\npython ../secrets/tool.py\npython own.py\n")
    (workspace / "own.py").write_text("import os")
    untouched(secrets)
    argv = ["./train.sh", f"--keys={secrets}/keys.json", "../secrets/run.sh", f"{secrets}/tool.py"]
    order = assigned(office, workspace, readable=(str(workspace),), argv=argv)
    assert set(order.code) == {"train.sh", "own.py"}


def test_a_folder_that_did_not_come_with_another_users_program_is_not_searched_for_its_code(
    office: Office, tmp_path: Path
) -> None:
    folder, came = tmp_path / "folder", tmp_path / "came"
    folder.mkdir()
    (folder / "train.py").write_text("import os")
    for path in (came, came / "rows"):
        path.mkdir()
    (came / "tool.py").write_text("import train")
    readable, argv = (str(came),), ["python", "train.py", str(came / "tool.py")]
    assert set(assigned(office, folder, argv=argv).code) == {"train.py", "../came/tool.py"}
    with pytest.raises(NoPermission, match="folder did not come with the job"):
        assigned(office, folder, readable=readable, argv=argv, inputs=[str(came / "rows")])
    assert assigned(office, folder, readable=readable, argv=argv).code == {}


def test_run_keeps_its_own_way(office: Office) -> None:
    order = office.builder.build(JobRequest(program=("true",)))
    node = only(order)
    assert (node.args["folder"], node.args["workspace"]) == (str(office.folder), "")
    assert "workspace" not in node.stage.args.identity(node.args, lambda _: "digest")


def venv(folder: Path) -> Path:
    (folder / ".venv" / "bin").mkdir(parents=True)
    for name in ("python", "python3"):
        (folder / ".venv" / "bin" / name).symlink_to("/bin/sh")
    (folder / ".venv" / "pyvenv.cfg").touch()
    return folder / ".venv"


def beside(folder: Path | str, *, environment: dict[str, str] | None = None, **args: Any) -> str:
    said = {"argv": ["python", "train.py"], **args}
    return python_beside(said, str(folder), environment=environment or {"PATH": os.defpath}, own_prefix="/nowhere")


def test_a_projects_own_environment_is_used_where_the_project_lies(tmp_path: Path) -> None:
    assert beside(tmp_path) == beside(tmp_path / "nowhere") == beside("") == ""
    own = str(venv(tmp_path))
    assert beside(tmp_path) == own
    assert beside(tmp_path, python=".venv") == own
    # Whoever names another one, or works in another one, means that.
    assert beside(tmp_path, python="/usr/bin/python3") == ""
    assert beside(tmp_path, python="python3.11") == ""
    active = venv(tmp_path / "active")
    assert beside(tmp_path, environment={"PATH": os.defpath, "VIRTUAL_ENV": str(active)}) == ""


def unseen() -> str:
    raise AssertionError


def test_a_machine_looks_again_at_the_code_that_it_was_given() -> None:
    fields: dict[str, Any] = {
        "job": "a" * 64,
        "attempt": 1,
        "epoch": 1,
        "generation": 1,
        "name": "x",
        "lease_s": 1.0,
        "start_s": 1.0,
        "args": {"argv": ["python", "train.py"]},
    }
    tree = Tree((TreeEntry("sub/train.py", 1, Digest("a" * 64)), TreeEntry("train.py", 1, Digest("a" * 64))))
    digest = str(tree.digest())
    grant = grant_of(recipe="command", code_tree=digest, code_folder="sub", **fields)
    assert "accepts only ccccccc" in refusal_of(grant, ("c" * 64,))
    assert refusal_of(grant, (digest,)) == ""
    assert refusal_of(grant_of(recipe="tabular/gbt", code_tree=digest, **fields), ("c" * 64,)) == ""
    assert refusal_by_tree(grant, (digest,), tree, unseen) == ""
    linked = Tree((TreeEntry("sub/train.py", 1, Digest("a" * 64), link_to="../data.py"),))
    other = grant_of(recipe="command", code_tree=str(linked.digest()), code_folder="sub", **fields)
    assert "not in its tree" in refusal_by_tree(other, (str(linked.digest()),), linked, unseen)
    assert "is not tree" in refusal_by_tree(grant, (digest,), linked, unseen)


def test_pins_are_read_from_words_and_files() -> None:
    lines = ["# reviewed", f"{'a' * 64}  # first", "", "b" * 64]
    assert read_accepted([f"@{'list'}", "c" * 64], lambda _: lines) == ("a" * 64, "b" * 64, "c" * 64)
    assert read_accepted([], lambda _: []) == ()
    for words, said in (
        (["main"], "not the digest of a tree"),
        (["a" * 40], "not the digest of a tree"),
        (["@empty"], "no code at all"),
    ):
        with pytest.raises(Usage, match=said):
            read_accepted(words, lambda _: ["# nothing"])
