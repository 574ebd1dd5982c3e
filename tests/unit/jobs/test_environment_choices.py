"""What a job says of its interpreter, as choices that travel; and what a fleet makes of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from stoker.core.job import EnvironmentChoice
from stoker.core.machine import Platform
from stoker.jobs.pack.environment_choices import EnvironmentChoices, refused_by
from stoker.protocol.environment_messages import EnvironmentStatus, choose, environment_digest, outlook, outlooks
from stoker.protocol.lease_messages import MachineInventory
from tests.unit.worker.tiny_wheels import locked_project, wheel

JETSON = Platform(system="linux", machine="aarch64", pythons=("3.10.12", "3.8.10"))
DESK = Platform(system="linux", machine="x86_64", pythons=("3.12.3",))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    wheels = [wheel(str(tmp_path / "wheels"), "torch", tag="cp312-cp312-manylinux_2_28_x86_64")]
    locked_project(str(tmp_path), wheels)
    (tmp_path / "requirements-jetson.txt").write_text("numpy\n")
    return tmp_path


def held(platform: Platform, **more: Any) -> MachineInventory:
    return MachineInventory(platform=platform.name, libc="glibc 2.35", pythons=platform.pythons, **more)


def test_one_file_is_one_choice_for_every_machine(project: Path) -> None:
    chosen = EnvironmentChoices(str(project)).of({"": "uv.lock"}, {})
    (only,) = chosen.choices
    assert (only.platform, only.kind, only.path, only.python) == ("", "uv.lock", "uv.lock", ">=3.10")
    assert only.digest
    assert chosen.files == ("pyproject.toml", "uv.lock", "wheels/torch-1.0-cp312-cp312-manylinux_2_28_x86_64.whl")
    assert chosen.faults == ()


def test_a_table_gives_each_platform_its_own_and_the_nearest_name_wins(project: Path) -> None:
    env = {"": "uv.lock", "linux-aarch64": "requirements-jetson.txt"}
    python = {"": "3.12", "linux-aarch64-cp38": "/opt/python3.8/bin/python", "linux-aarch64": "3.10"}
    choices = EnvironmentChoices(str(project)).of(env, python).choices
    assert [(one.platform, one.kind, one.path, one.python) for one in choices] == [
        ("linux-aarch64-cp38", "python", "/opt/python3.8/bin/python", ""),
        ("linux-aarch64", "requirements", "requirements-jetson.txt", "3.10"),
        ("", "uv.lock", "uv.lock", "3.12"),
    ]
    assert choose(choices, DESK) is choices[2]
    assert choose(choices, JETSON) is choices[0]
    assert choose(choices[1:], JETSON) is choices[1]


def test_a_version_alone_means_the_machine_s_own_interpreter(project: Path) -> None:
    (only,) = EnvironmentChoices(str(project)).of({}, {"": "3.11"}).choices
    assert (only.kind, only.path, only.python) == ("python", "", "3.11")


@pytest.mark.parametrize(
    ("env", "python", "where", "message"),
    [
        ({"": "gone.txt"}, {}, "env", "file not found: gone.txt"),
        ({"linux-aarch64": "setup.py"}, {}, "env.linux-aarch64", "setup.py is not an environment file"),
        ({"": "../uv.lock"}, {}, "env", "../uv.lock is outside of the project"),
        ({"": "uv.lock"}, {"": "/usr/bin/python3"}, "env", "/usr/bin/python3 is an interpreter of the machine"),
    ],
    ids=["missing", "other", "outside", "both"],
)
def test_what_is_wrong_is_told_where_it_stands(
    project: Path, env: dict[str, str], python: dict[str, str], where: str, message: str
) -> None:
    (fault,) = EnvironmentChoices(str(project)).of(env, python).faults
    assert fault.where == where
    assert fault.message.startswith(message)


def test_jobs_that_say_the_same_are_looked_at_once(project: Path) -> None:
    choices = EnvironmentChoices(str(project))
    first = choices.of({"": "uv.lock"}, {})
    (project / "uv.lock").unlink()
    assert choices.of({"": "uv.lock"}, {}) is first


def test_what_a_lock_says_can_not_be_is_told_before_any_machine_tries(project: Path) -> None:
    choices = EnvironmentChoices(str(project)).of({"": "uv.lock"}, {}).choices
    (told,) = refused_by(choices, str(project), [held(JETSON), held(DESK), MachineInventory()])
    assert told.refused == {"linux-aarch64-cp310": "no wheel of torch for aarch64 cp310"}
    assert environment_digest([told]) != environment_digest(choices), "what it refuses holds for its own jobs alone"
    knows = held(JETSON, environments=(told.digest,))
    assert refused_by(choices, str(project), [knows]) == choices


def test_how_an_environment_stands_is_told_machine_by_machine(project: Path) -> None:
    choices = EnvironmentChoices(str(project)).of({"": "uv.lock"}, {}).choices
    digest = choices[0].digest
    fleet = {
        "desk": held(DESK, environments=(digest,), builds_s={digest: 120.0}),
        "lab1": held(DESK),
        "jetson": held(JETSON, impossible={digest: "no wheel of torch for aarch64 cp310"}),
        "old": MachineInventory(),
    }
    assert [one.text for one in outlooks(choices, fleet)] == [
        "desk ready",
        "lab1 builds, about 2m00s",
        "jetson: no wheel of torch for aarch64 cp310",
        "old: the worker reported no environments; check that it runs and has this version of Stoker",
    ]
    assert outlook(choices, "lab1", held(DESK)).text == "lab1 builds"


def test_a_machine_that_no_choice_names_has_none() -> None:
    choices = [EnvironmentChoice(platform="linux-x86_64", kind="uv.lock", path="uv.lock", digest="a" * 64)]
    found = outlook(choices, "jetson", held(JETSON))
    assert found.standing is EnvironmentStatus.IMPOSSIBLE
    assert found.why == "platform linux-aarch64-cp310; the job has environments only for linux-x86_64"
    assert outlook([], "jetson", held(JETSON)).standing is EnvironmentStatus.OWN


@pytest.mark.parametrize("env", [{}, {"": "requirements.txt"}], ids=["own", "made"])
def test_a_python_that_a_machine_does_not_have_is_told_before_it_declines(project: Path, env: dict[str, str]) -> None:
    (project / "requirements.txt").write_text("")
    choices = EnvironmentChoices(str(project)).of(env, {"": "3.14"}).choices
    assert outlook(choices, "jetson", held(JETSON)).text == "jetson: no Python that is 3.14: it has 3.10.12, 3.8.10"
    assert (
        outlook(choices, "new", MachineInventory(platform="linux-x86_64")).standing is not EnvironmentStatus.IMPOSSIBLE
    )


def test_a_path_of_the_machine_itself_needs_nothing(project: Path) -> None:
    choices = EnvironmentChoices(str(project)).of({}, {"linux-aarch64": sys.executable, "": "3.12"}).choices
    assert [one.kind for one in choices] == ["python", "python"]
    assert outlook(choices, "jetson", held(JETSON)).text == "jetson uses its own python"
