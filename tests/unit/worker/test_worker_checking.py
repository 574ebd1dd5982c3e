"""The second look before a start, from pictures of a machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stoker.core.frozen import changed
from stoker.core.job import job_id
from stoker.devices.admission import MachineMemory
from stoker.host.users import OtherUser, why_not_allowed
from stoker.protocol.lease_messages import Grant
from stoker.worker.machine_checks import LEAST_FREE_BYTES, Precheck, why_closed, why_not
from tests.fakes.coordinator import FakeCoordinator
from tests.fakes.grants import grant_of
from tests.fakes.keeping import Keep

GIB = 1 << 30
GOOD = Precheck(
    memory=MachineMemory(total_bytes=16 * GIB, available_bytes=8 * GIB), disk_free_bytes=100 * GIB, recipe_version=1
)


def grant(**more: Any) -> Grant:
    fields: dict[str, Any] = {"recipe": "command", "args": {"argv": ["true"]}, **more}
    fields.setdefault("identity", fields["args"])
    version = fields.get("schema_version", 1)
    fields.setdefault("job", job_id(recipe=fields["recipe"], schema_version=version, args=fields["identity"]))
    return grant_of(attempt=1, epoch=1, generation=1, name="a", lease_s=9.0, start_s=9.0, ram_bytes=4 * GIB, **fields)


def test_what_is_as_it_was_granted_starts():
    assert why_not(grant(), GOOD) is None


@pytest.mark.parametrize(
    ("reason", "seen"),
    [
        ("recipe", {"recipe_version": None}),
        ("recipe_version", {"recipe_version": 2}),
        ("folder", {"missing_folder": "/gone"}),
        ("program", {"missing_program": "there is no python3.99"}),
        ("secrets", {"secret_trouble": "desk: not set in this worker's environment: WANDB_API_KEY"}),
        ("disk", {"disk_free_bytes": LEAST_FREE_BYTES - 1}),
        ("memory", {"memory": MachineMemory(total_bytes=16 * GIB, available_bytes=4 * GIB + 16 * GIB // 10 - 1)}),
        ("memory", {"memory": MachineMemory(total_bytes=4 * GIB, available_bytes=None)}),
        ("device", {"device_trouble": "taken by others"}),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_each_lack_has_its_reason_and_a_line(reason: str, seen: dict[str, Any]):
    refusal = why_not(grant(), changed(GOOD, **seen))
    assert refusal is not None
    assert refusal.reason == reason
    assert refusal.message


@pytest.mark.parametrize(
    "brings", [{"code_tree": "a" * 64}, {"environment": [{"kind": "requirements", "path": "requirements.txt"}]}]
)
def test_a_recipe_runs_no_code_that_came_with_its_job(brings: dict[str, Any]):
    assert why_not(grant(**brings), GOOD) is None
    refusal = why_not(grant(recipe="tabular/gbt", **brings), GOOD)
    assert refusal is not None
    assert refusal.reason == "recipe"
    assert "brings its own" in refusal.message


def test_what_can_not_be_read_refuses_nobody():
    unknown = changed(GOOD, disk_free_bytes=None, memory=MachineMemory(total_bytes=None, available_bytes=None))
    assert why_not(grant(), unknown) is None
    assert why_closed(None) == ""


def test_a_full_disk_closes_a_machine_with_numbers():
    assert why_closed(LEAST_FREE_BYTES) == ""
    assert "1.0 MiB are free" in why_closed(1 << 20)


@pytest.mark.parametrize(
    "forged",
    [
        {"args": {"argv": ["rm", "-rf", "/"]}},
        {"args": {"argv": ["true"], "env": {"LD_PRELOAD": "/tmp/evil.so"}}, "identity": {"argv": ["true"], "env": {}}},
        {"args": {"argv": ["true"], "ranks": 4}},
        {"args": {"argv": ["true"], "data": {"LD_PRELOAD": "/tmp/evil.so"}}},
        {"inputs": ({"where": "env:LD_PRELOAD", "kind": "tree", "tree": "e" * 64},)},
        {"mode": "oracle"},
        {"seed": 2},
        {"train_hosts": ("desk",)},
        {"recipe": "tabular/gbt"},
    ],
)
def test_a_job_that_is_not_the_one_its_id_names_is_not_started(forged: dict[str, Any]):
    real = {"recipe": "command", "schema_version": 1, "args": forged.get("identity", {"argv": ["true"]})}
    refusal = why_not(grant(**{"identity": real["args"], **forged}, job=job_id(**real)), GOOD)
    assert refusal is not None
    assert (refusal.reason, refusal.lasts) == ("identity", True)


@pytest.fixture
def keep(tmp_path: Path) -> Keep:
    return Keep(tmp_path, FakeCoordinator())


@pytest.mark.parametrize(
    ("reason", "more"),
    [
        (None, {}),
        ("recipe", {"recipe": "nobody/knows"}),
        ("recipe_version", {"schema_version": 99}),
        ("folder", {"folder": "/nowhere/at/all"}),
        ("program", {"args": {"argv": ["python"], "python": "/no/python"}}),
        ("secrets", {"secrets": ("NOBODY_SET_THIS",)}),
        ("device", {"devices": ("GPU-none",)}),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_real_look_finds_what_is_missing(keep: Keep, reason: str | None, more: dict[str, Any]):
    wanted = grant(**{"folder": str(keep.folder), **more})
    refusal = why_not(wanted, keep.machine.look(wanted))
    assert (refusal.reason if refusal else None) == reason


@pytest.mark.parametrize("python", ["", "bin/python"])
def test_a_program_whose_code_travels_needs_no_folder_of_whoever_submitted_it(keep: Keep, python: str):
    wanted = grant(folder="/nowhere/at/all", code_tree="c" * 64, args={"argv": ["python3"], "python": python})
    assert why_not(wanted, keep.machine.look(wanted)) is None


as_root = pytest.mark.skipif(
    bool(why_not_allowed()) or not os.path.exists("/usr/bin/python3"),
    reason=f"programs of other users: {why_not_allowed() or 'no Python that everybody may use'}",
)
USER = OtherUser(name="jobs1", uid=31_000_000 + os.getpid(), gid=31_000_000 + os.getpid())


@contextmanager
def programs_in(folder: Path) -> Iterator[None]:
    """Write root's programs, named by their mode, and a FIFO that has a writer for the block."""
    for name in ("0644", "0744", "0755"):
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(int(name, 8))
    os.mkfifo(folder / "fifo")
    (folder / "fifo").chmod(0o777)
    writer = os.open(folder / "fifo", os.O_RDWR)
    try:
        yield
    finally:
        os.close(writer)


@as_root
@pytest.mark.parametrize(
    ("argv", "python", "path", "is_closed"),
    [
        ("/usr/bin/python3", "", "/usr/bin", False),
        ("{open}/python", "", "/usr/bin", True),
        ("{closed}/python", "", "/usr/bin", True),
        ("{closed}/nothing", "", "/usr/bin", True),
        ("python3", "{closed}/python", "/usr/bin", True),
        ("python3", "{closed}/nothing", "/usr/bin", True),
        ("python3", "/usr/bin/python3", "/usr/bin", False),
        ("python3", "", "{closed}:/usr/bin", False),
        ("python", "", "{open}:/usr/bin", True),
        ("python", "", "{empty}", True),
        ("train.sh", "", "{empty}", False),
        ("train.sh", "/usr/bin/python3", "{empty}", False),
        ("train.sh", "{closed}/python", "{empty}", True),
        ("{empty}", "", "/usr/bin", True),
        ("{programs}/fifo", "", "/usr/bin", True),
        ("{programs}/0644", "", "/usr/bin", True),
        ("{programs}/0744", "", "/usr/bin", True),
        ("{programs}/0755", "", "/usr/bin", False),
        ("python3", "{programs}/0744", "/usr/bin", True),
        ("python3.3", "/usr/bin/python3", "/usr/bin", True),
    ],
)
def test_a_program_that_the_jobs_user_may_not_execute_is_declined(
    open_path: Path, argv: str, python: str, path: str, is_closed: bool
) -> None:
    places = {name: open_path / name for name in ("open", "closed", "empty", "programs")}
    for place in places.values():
        place.mkdir()
    (places["closed"] / "python").symlink_to("/usr/bin/python3")
    (places["open"] / "python").symlink_to(places["closed"] / "python")
    places["closed"].chmod(0o700)
    keep = Keep(open_path, FakeCoordinator())
    around = {**keep.environment, "PATH": path.format(**places), "VIRTUAL_ENV": str(places["closed"])}
    machine = changed(keep.machine, environment=around, users=(USER,))
    args = {"argv": [argv.format(**places)], "python": python.format(**places)}
    wanted = grant(folder=str(open_path), args=args)
    with programs_in(places["programs"]):
        refusal = why_not(wanted, machine.look(wanted))
    assert (refusal is not None) == is_closed, refusal
    if refusal is not None:
        assert refusal.reason == "program"
        assert "jobs run as jobs1 here" in refusal.message


@as_root
@pytest.mark.parametrize("argv", ["python", "python3.3", "train.sh", "/bin/true"])
def test_a_refusal_does_not_reveal_whether_a_file_of_root_exists(open_path: Path, argv: str) -> None:
    keep = Keep(open_path, FakeCoordinator())
    open_path.chmod(0o755)
    closed = open_path / "closed"
    (closed / "here" / "bin").mkdir(parents=True)
    (closed / "here" / "bin" / "python").symlink_to("/usr/bin/python3")
    closed.chmod(0o700)
    machine = changed(keep.machine, environment={"PATH": "/usr/bin"}, users=(USER,))
    for path in ("here", "here/bin", "here/bin/python"):
        texts = set()
        for python in (str(closed / path), str(closed / path.replace("here", "gone"))):
            wanted = grant(folder=str(open_path), args={"argv": [argv], "python": python})
            refusal = why_not(wanted, machine.look(wanted))
            texts.add(refusal.message.replace("gone", "here") if refusal else "")
        (text,) = texts
        assert f"{closed}/{path} is not a program that jobs1 may execute" in text


@as_root
def test_a_version_of_python_that_is_missing_is_named_in_the_refusal(open_path: Path) -> None:
    keep = Keep(open_path, FakeCoordinator())
    machine = changed(keep.machine, environment={"PATH": "/usr/bin"}, users=(USER,))
    wanted = grant(folder=str(open_path), args={"argv": ["python3.3"], "python": "/usr/bin/python3"})
    assert machine.look(wanted).missing_program == (
        "there is no python3.3 that jobs1 can reach, and jobs run as jobs1 here"
    )


@as_root
def test_an_environment_in_the_workers_home_is_not_the_one_of_packed_code(open_path: Path) -> None:
    keep = Keep(open_path, FakeCoordinator())
    venv = Path(keep.machine.home) / ".venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to("/usr/bin/python3")
    (venv.parent).chmod(0o700)
    machine = changed(keep.machine, environment={"PATH": "/usr/bin"}, users=(USER,))
    wanted = grant(folder="/nowhere/at/all", code_tree="c" * 64, args={"argv": ["python"]})
    assert machine.look(wanted).missing_program == ""
    assert machine.closed_python() == ""
    alone = changed(machine, users=(), environment={"PATH": str(open_path)})
    assert alone.look(wanted).missing_program == "python not found on PATH"


@as_root
def test_a_worker_says_at_its_start_that_its_users_can_not_execute_python(open_path: Path) -> None:
    keep = Keep(open_path, FakeCoordinator())
    open_path.chmod(0o755)
    private = open_path / "private"
    private.mkdir(mode=0o700)
    (private / "python").symlink_to("/usr/bin/python3")
    (open_path / "python").symlink_to(private / "python")
    closed = changed(keep.machine, environment={"PATH": str(open_path)}, users=(USER,))
    assert f"{open_path}/python is not a program that jobs1 may execute" in closed.closed_python()
    assert changed(closed, environment={"PATH": "/usr/bin"}).closed_python() == ""
    assert changed(closed, users=()).closed_python() == ""
