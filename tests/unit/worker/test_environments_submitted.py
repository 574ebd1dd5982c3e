"""Environments on their way with a job: in its order, in its attempt, in what is told of its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.cli.submit import read_env
from stoker.core.errors import InvalidArgs, Usage
from stoker.core.leases import AttemptToken
from stoker.engine.code_identity import CodeIdentity
from stoker.jobs.job_folder import PYTHON, JobFolder, read_python
from stoker.jobs.pack.code_tree import PreparedSubmission
from stoker.jobs.request import JobRequest
from stoker.jobs.submission import prepare
from stoker.protocol.view_messages import AttemptView, JobDetails, JobView
from stoker.store.environment_cache import EnvironmentReady
from stoker.views.fleet_lines import python_lines
from stoker.worker.assignment import Assignment
from stoker.worker.attempt_child import build_assignment
from tests.unit.jobs.conftest import Office

PROGRAM = ("python", "train.py")


def typed(office: Office, *words: str, **wishes: Any) -> PreparedSubmission:
    (office.folder / "train.py").write_text("print(1)")
    (office.folder / "requirements.txt").write_text("alpha\n")
    request = JobRequest(overrides=words, program=PROGRAM, **wishes)
    return prepare(request, builder=office.builder, code=CodeIdentity(str(office.folder / "code.json")))


def test_an_environment_that_was_typed_goes_with_the_order_and_counts_as_its_code(office: Office) -> None:
    (one,) = typed(office, "python=3.11", env={"": "requirements.txt"}).jobs
    (choice,) = one.environment
    assert (choice.kind, choice.path, choice.python) == ("requirements", "requirements.txt", "3.11")
    assert one.args["python"] == ""
    assert one.code["requirements.txt"] == choice.digest
    (plain,) = typed(office).jobs
    assert plain.environment == ()
    assert plain.id == one.id


def test_a_path_stays_a_setting_and_a_version_becomes_a_choice(office: Office) -> None:
    (path,) = typed(office, "python=/usr/bin/python3").jobs
    assert (path.args["python"], path.environment) == ("/usr/bin/python3", ())
    (version,) = typed(office, "python=3.11").jobs
    assert (version.args["python"], [way.kind for way in version.environment]) == ("", ["python"])


def test_what_is_wrong_with_a_typed_environment_is_a_fault(office: Office) -> None:
    with pytest.raises(InvalidArgs, match=r"file not found: gone\.txt"):
        typed(office, env={"": "gone.txt"})
    with pytest.raises(InvalidArgs, match="is an interpreter of the machine"):
        typed(office, "python=/usr/bin/python3", env={"": "requirements.txt"})


def test_a_manifest_s_environment_goes_with_every_point_of_its_sweep(office: Office) -> None:
    folder = office.folder
    (folder / "requirements.txt").write_text("alpha\n")
    (folder / "train.py").write_text("print(1)")
    manifest = folder / "m.toml"
    manifest.write_text(
        '[[jobs]]\nname = "a"\ncommand = "python train.py {lr}"\nsweep = { lr = [1, 2, 3] }\nenv = "requirements.txt"\n'
        'python = "3.11"\n[[jobs]]\nname = "b"\ncommand = "python train.py"\npython = "/usr/bin/python3"\n'
    )
    made = prepare(
        JobRequest(target=str(manifest), is_manifest=True),
        builder=office.builder,
        code=CodeIdentity(str(folder / "code.json")),
    )
    ways = [[(way.kind, way.python) for way in one.environment] for one in made.jobs]
    assert ways == [[("requirements", "3.11")]] * 3 + [[]]
    assert made.jobs[3].args["python"] == "/usr/bin/python3"
    # The folder holds what the fixture laid there, too.
    assert [note for note in made.notes if not note.startswith("not sent: ")] == []


def test_an_attempt_runs_in_its_environment_and_tells_with_which_packages(office: Office, tmp_path: Path) -> None:
    (office.folder / "train.py").write_text("print(1)")
    ready = EnvironmentReady(
        digest="a" * 64,
        key="b" * 64,
        interpreter="/envs/b/venv/bin/python",
        version="3.11.7",
        packages={"torch": "2.5.1"},
        uv="0.13.7",
    )
    (order,) = typed(office).jobs
    token = AttemptToken(job=order.id, attempt=1, epoch=1, generation=1)
    sent = Assignment(spec=order, token=token, folder=str(office.folder), run="r", lease_path="", python=ready.facts())
    made = build_assignment(office.builder, Assignment.from_line(sent.to_line()))
    assert made.trials[0].spec.args["python"] == "/envs/b/venv/bin/python"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / PYTHON).write_bytes(made.papers[PYTHON])
    told = read_python(JobFolder(str(tmp_path / "run")))
    assert told == ready.facts()
    assert told["packages"] == {"torch": "2.5.1"}
    assert read_python(JobFolder(str(tmp_path))) == {}


def test_the_story_of_a_job_shows_its_interpreter_and_packages() -> None:
    view = JobView(
        id="0" * 64,
        name="a",
        recipe="command",
        state="completed",
        priority=0,
        epoch=1,
        attempt=1,
        submitted_s=0.0,
        changed_s=0.0,
    )
    packages = {f"p{number}": "1.0" for number in range(10)}
    facts = {"python": {"interpreter": "/e/bin/python", "python": "3.11.7", "packages": packages}}
    tried = AttemptView(number=1, epoch=1, generation=1, machine="m", incarnation="i", granted_s=0.0, facts=facts)
    lines = python_lines(JobDetails.model_validate({"job": view, "attempts": (tried,)}))
    assert lines[0] == "python  3.11.7  /e/bin/python"
    assert lines[1].endswith("p7 1.0 and 2 more")
    assert python_lines(JobDetails.model_validate({"job": view})) == []


def test_a_file_may_be_named_for_one_sort_of_machines() -> None:
    assert read_env(["uv.lock", "linux-aarch64=req=1.txt"]) == {"": "uv.lock", "linux-aarch64": "req=1.txt"}
    assert read_env(["default=uv.lock"]) == {"": "uv.lock"}
    assert read_env(["odd=name.txt"]) == {"": "odd=name.txt"}
    with pytest.raises(Usage, match=r"uv\.lock is already set for this platform"):
        read_env(["uv.lock", "requirements.txt"])
