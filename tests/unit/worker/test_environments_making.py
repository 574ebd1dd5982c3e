"""Real builds by the real uv, of wheels that were made on the spot."""

from __future__ import annotations

import io
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core.clock import FakeClock
from stoker.core.frozen import changed
from stoker.core.job import EnvironmentChoice
from stoker.core.jsontext import dumps, loads
from stoker.core.machine import Platform
from stoker.host.durable import read_regular
from stoker.host.identity import mine, of_pid
from stoker.host.processes import start
from stoker.host.user_switch import start_as
from stoker.host.users import OtherUser, why_not_allowed
from stoker.jobs.pack.environment_files import gather
from stoker.protocol.environment_messages import own_digest
from stoker.store.environment_cache import (
    EnvironmentCache,
    EnvironmentFailed,
    EnvironmentImpossible,
    EnvironmentReady,
    key_of,
    prune,
)
from stoker.worker.environments import environment_builder
from stoker.worker.environments.environment_builder import Maker
from stoker.worker.environments.uv import Build, Python, commands, lay_out
from tests.unit.worker.tiny_wheels import locked_project, maker_in, wheel

as_root = pytest.mark.skipif(
    bool(why_not_allowed()) or not os.path.exists("/usr/bin/python3"),
    reason=f"programs of other users: {why_not_allowed() or 'no Python that everybody may use'}",
)


def choice_of(project: Path, path: str = "uv.lock", **more: Any) -> EnvironmentChoice:
    found = gather(str(project), path, **more)
    return EnvironmentChoice(kind=found.kind, path=path, digest=found.digest, python=found.python, extras=found.extras)


def changed_path(choice: EnvironmentChoice, path: Path) -> EnvironmentChoice:
    return changed(choice, path=str(path))


def project_in(folder: Path) -> Path:
    project = folder / "project"
    wheels = [wheel(str(project / "wheels"), name) for name in ("alpha", "beta")]
    locked_project(str(project), wheels)
    return project


def run(ready: EnvironmentReady, code: str, **env: str) -> str:
    done = subprocess.run([ready.interpreter, "-c", code], capture_output=True, text=True, check=True, env=env)
    return done.stdout.strip()


def test_a_lock_is_built_once_and_found_again_with_its_packages(tmp_path: Path) -> None:
    project, maker = project_in(tmp_path), maker_in(tmp_path)
    said: list[str] = []
    choice = choice_of(project)
    assert maker.look([choice]) is None
    ready = maker.make([choice], project=str(project), say=said.append)
    assert isinstance(ready, EnvironmentReady), ready
    assert (
        run(ready, "import alpha, beta, sys; print(alpha.VERSION, sys.prefix)") == f"1.0 {maker.shelf.venv(ready.key)}"
    )
    assert ready.packages == {"alpha": "1.0", "beta": "1.0"}
    assert ready.uv
    assert ready.seconds > 0
    assert any("alpha" in line for line in said)
    said.clear()
    assert maker_in(tmp_path).look([choice]) == ready
    assert maker.make([choice], project=str(project), say=said.append) == ready
    assert said == []
    told = maker.report()
    assert told["environments"] == (choice.digest,)
    assert told["builds_s"] == {choice.digest: ready.seconds}
    assert ready.facts()["packages"] == {"alpha": "1.0", "beta": "1.0"}


def test_requirements_bring_what_they_include_and_the_dependencies_of_local_packages(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in ("alpha", "beta", "gamma"):
        wheel(str(project / "wheels"), name)
    (project / "requirements.txt").write_text("--find-links wheels\n-r more.txt\nalpha==1.0\n-e libs/mine\n")
    (project / "more.txt").write_text("beta\n")
    (project / "libs/mine").mkdir(parents=True)
    (project / "libs/mine/pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\ndependencies = ["gamma"]\n'
    )
    (project / "libs/mine/mine.py").write_text("HERE = 1\n")
    choice = choice_of(project, "requirements.txt")
    ready = maker_in(tmp_path, UV_NO_INDEX="1").make([choice], project=str(project), say=lambda line: None)
    assert isinstance(ready, EnvironmentReady), ready
    assert set(ready.packages) == {"alpha", "beta", "gamma"}
    places = ready.python_path(str(project))
    assert places == (str(project), str(project / "libs/mine"))
    assert run(ready, "import mine, gamma; print(mine.HERE)", PYTHONPATH=os.pathsep.join(places)) == "1"


def test_the_dependencies_of_a_project_file_are_installed_from_where_pip_would_find_them(tmp_path: Path) -> None:
    project, links = tmp_path / "project", tmp_path / "links"
    project.mkdir()
    for name in ("alpha", "beta"):
        wheel(str(links), name)
    (project / "pyproject.toml").write_text(
        '[project]\nname = "study"\nversion = "1"\ndependencies = ["alpha"]\n'
        '[project.optional-dependencies]\nmore = ["beta"]\n'
    )
    maker = maker_in(tmp_path, PIP_FIND_LINKS=str(links), PIP_NO_INDEX="1")
    plain = maker.make([choice_of(project, "pyproject.toml")], project=str(project), say=lambda line: None)
    assert isinstance(plain, EnvironmentReady), plain
    assert set(plain.packages) == {"alpha"}
    more = choice_of(project, "pyproject.toml", extras=("more",))
    rich = maker.make([more], project=str(project), say=lambda line: None)
    assert isinstance(rich, EnvironmentReady), rich
    assert set(rich.packages) == {"alpha", "beta"}
    assert rich.key != plain.key


@pytest.mark.parametrize("name", ["requirements.txt", "more.txt", "wheels/alpha-1.0-py3-none-any.whl"])
def test_a_file_that_changes_after_it_was_digested_is_not_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    project = tmp_path / "project"
    for one in ("alpha", "beta"):
        wheel(str(project / "wheels"), one)
    (project / "requirements.txt").write_text("--find-links wheels\n-r more.txt\n")
    (project / "more.txt").write_text("alpha\n")
    choice, maker = choice_of(project, "requirements.txt"), maker_in(tmp_path, UV_NO_INDEX="1")

    def swap_and_lay_out(*said: Any, **more: Any) -> None:
        (project / name).write_text("--find-links wheels\nbeta\n")
        lay_out(*said, **more)

    with monkeypatch.context() as patch:
        patch.setattr(environment_builder, "lay_out", swap_and_lay_out)
        answer = maker.make([choice], project=str(project), say=lambda line: None)
    assert answer == EnvironmentFailed(digest=choice.digest, why="requirements.txt is not the one that was submitted")
    assert maker.look([choice]) is None


def test_what_no_wheel_fits_is_impossible_and_remembered_until_the_interpreters_are_others(tmp_path: Path) -> None:
    project = tmp_path / "project"
    wheels = [wheel(str(project / "wheels"), "torch", "2.1", tag="cp39-cp39-win_amd64")]
    locked_project(str(project), wheels)
    choice, maker = choice_of(project), maker_in(tmp_path)
    answer = maker.make([choice], project=str(project), say=lambda line: None)
    assert isinstance(answer, EnvironmentImpossible)
    assert answer.why.startswith(f"no wheel of torch for {maker.platform.machine} cp3")
    assert maker_in(tmp_path).look([choice]) == answer
    assert maker.report()["impossible"] == {choice.digest: answer.why}
    assert maker.shelf.refused(choice.digest, ("3.99.0",)) is None


def test_a_python_that_nobody_has_is_impossible(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    choice = choice_of(project, python="3.4")
    answer = maker_in(tmp_path).make([choice], project=str(project), say=lambda line: None)
    assert isinstance(answer, EnvironmentImpossible)
    assert answer.why.startswith("no Python that is 3.4: it has 3.")


def test_a_package_that_can_not_be_had_for_now_is_no_impossibility(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "requirements.txt").write_text("alpha\n")
    choice, maker = choice_of(project, "requirements.txt"), maker_in(tmp_path)
    answer = maker.make([choice], project=str(project), say=lambda line: None)
    assert isinstance(answer, EnvironmentFailed)
    assert answer.why
    assert maker.look([choice]) is None


def test_files_that_are_not_those_that_were_submitted_are_not_built(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    choice = choice_of(project)
    with (project / "uv.lock").open("a") as file:
        file.write("\n# another one\n")
    answer = maker_in(tmp_path).make([choice], project=str(project), say=lambda line: None)
    assert answer == EnvironmentFailed(digest=choice.digest, why="uv.lock is not the one that was submitted")


def test_a_machine_that_no_choice_names_can_not_have_the_job(tmp_path: Path) -> None:
    choice = EnvironmentChoice(platform="windows-x86_64", kind="uv.lock", path="uv.lock", digest="a" * 64)
    answer = maker_in(tmp_path).look([choice])
    assert isinstance(answer, EnvironmentImpossible)
    assert "the job has environments only for windows-x86_64" in answer.why


def test_the_machine_s_own_interpreter_needs_no_building(tmp_path: Path) -> None:
    maker = maker_in(tmp_path)
    version = maker.platform.pythons[0]
    by_path = maker.look([EnvironmentChoice(kind="python", path=sys.executable)])
    assert isinstance(by_path, EnvironmentReady)
    assert by_path.interpreter == sys.executable
    assert by_path.version == ".".join(map(str, sys.version_info[:3]))
    assert "pytest" in by_path.packages
    by_version = maker.look([EnvironmentChoice(kind="python", python=".".join(version.split(".")[:2]))])
    assert isinstance(by_version, EnvironmentReady)
    assert by_version.version == version
    nowhere = maker.look([EnvironmentChoice(kind="python", path="/nowhere/python")])
    assert isinstance(nowhere, EnvironmentImpossible)
    assert nowhere.why == "there is no Python at /nowhere/python"
    assert maker.report()["impossible"] == {own_digest("/nowhere/python", ""): nowhere.why}


def test_an_interpreter_that_goes_by_the_digest_of_an_environment_has_nothing_refused_to_others(tmp_path: Path) -> None:
    project, maker = project_in(tmp_path), maker_in(tmp_path)
    victim = choice_of(project)
    for path in ("/nonexistent/python", "", ".venv/bin/python"):
        forged = EnvironmentChoice(kind="python", path=path, python="3.4", digest=victim.digest)
        assert isinstance(maker.look([forged], folder=str(project)), EnvironmentImpossible)
        assert maker.look([victim]) is None
        assert victim.digest not in maker.report()["impossible"]


def test_an_interpreter_that_one_project_lacks_is_looked_for_in_another(tmp_path: Path) -> None:
    project, maker = project_in(tmp_path), maker_in(tmp_path)
    choice = EnvironmentChoice(kind="python", path="bin/python", digest=own_digest("bin/python", ""))
    assert isinstance(maker.look([choice], folder=str(project)), EnvironmentImpossible)
    assert maker.report()["impossible"] == {}
    assert isinstance(maker.look([choice], folder=sys.prefix), EnvironmentReady)


def test_an_environment_without_its_interpreter_or_its_last_file_is_made_again(tmp_path: Path) -> None:
    project, maker = project_in(tmp_path), maker_in(tmp_path)
    choice = choice_of(project)
    ready = maker.make([choice], project=str(project), say=lambda line: None)
    assert isinstance(ready, EnvironmentReady)
    for victim in (ready.interpreter, os.path.join(maker.shelf.place(ready.key), "ready.json")):
        os.unlink(victim)
        assert maker.look([choice]) is None
        again = maker.make([choice], project=str(project), say=lambda line: None)
        assert isinstance(again, EnvironmentReady), again
        assert os.path.exists(victim)


@pytest.mark.parametrize(
    "spoil",
    [b"", b"{", b'{"v": 2}', b'{"v": 1, "digest": "x"}', b"[]"],
    ids=["empty", "cut", "newer", "another", "list"],
)
def test_a_damaged_last_file_means_not_ready(tmp_path: Path, spoil: bytes) -> None:
    shelf = EnvironmentCache(str(tmp_path / "envs"), clock=FakeClock())
    key = "b" * 64
    ready = EnvironmentReady(digest="a" * 64, key=key, interpreter=sys.executable)
    os.makedirs(shelf.place(key))
    shelf.keep(ready)
    assert shelf.find("a" * 64, key) == ready
    assert shelf.find("c" * 64, key) is None
    Path(shelf.place(key), "ready.json").write_bytes(spoil)
    assert shelf.find("a" * 64, key) is None


def slow_uv(folder: Path) -> str:
    """Return a uv that says something, then waits for ever below itself."""
    prefix = folder / "slow"
    (prefix / "bin").mkdir(parents=True)
    program = prefix / "bin/uv"
    program.write_text(
        '#!/bin/sh\necho "Resolved from https://me:secret@host/simple"\nsleep 600 &\necho $! > $HOME/inner\nwait\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(prefix)


def slow_maker(folder: Path) -> Maker:
    fast = maker_in(folder)
    return Maker(shelf=fast.shelf, environment=fast._environment, own_prefix=slow_uv(folder), clock=fast._clock)


def test_who_stops_waiting_stops_uv_and_everything_below_it(tmp_path: Path) -> None:
    project, maker = project_in(tmp_path), slow_maker(tmp_path)
    stop, said = threading.Event(), []

    def hear(line: str) -> None:
        said.append(line)
        if "Resolved" in line:
            stop.set()

    answer = maker.make([choice_of(project)], project=str(project), say=hear, is_stopped=stop.is_set)
    assert isinstance(answer, EnvironmentFailed)
    assert answer.why == "it was stopped"
    inner = int((tmp_path / "inner").read_text()) if (tmp_path / "inner").exists() else None
    assert inner is None or of_pid(inner) is None or _is_zombie(inner)
    assert said[-1] == "Resolved from https://***@host/simple"


def _is_zombie(pid: int) -> bool:
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


def test_whoever_waits_hears_the_builder_and_takes_what_it_made(tmp_path: Path) -> None:
    project, maker = project_in(tmp_path), maker_in(tmp_path)
    choice = choice_of(project)
    key = key_of(choice.digest, maker.platform)
    waits, heard, answers = threading.Event(), [], []

    def hear(line: str) -> None:
        heard.append(line)
        waits.set()

    other = maker_in(tmp_path)
    first = threading.Event()

    def hold(_line: str) -> None:
        first.set()
        waits.wait(20)

    def build() -> None:
        answers.append(maker.make([choice], project=str(project), say=hold))

    thread = threading.Thread(target=build)
    thread.start()
    assert first.wait(20)
    answer = other.make([choice], project=str(project), say=hear)
    thread.join()
    assert answers == [answer]
    assert isinstance(answer, EnvironmentReady)
    assert heard[0].startswith(f"process {os.getpid()} builds uv.lock")
    assert answer.key == key


def test_what_a_killed_builder_left_is_ended_and_made_anew(tmp_path: Path) -> None:
    project, maker = project_in(tmp_path), maker_in(tmp_path)
    choice = choice_of(project)
    key = key_of(choice.digest, maker.platform)
    place = Path(maker.shelf.place(key))
    (place / "venv").mkdir(parents=True)
    (place / "venv/half").write_text("x")
    left = start(("sleep", "600"), cwd="/", env={"PATH": os.defpath})
    (place / "building.json").write_text(dumps({"group": left.identity.to_dict(), "line": ""}))
    assert maker.look([choice]) is None
    ready = maker.make([choice], project=str(project), say=lambda line: None)
    assert isinstance(ready, EnvironmentReady), ready
    assert left.wait(10).signal in (signal.SIGTERM, signal.SIGKILL)
    assert not (place / "venv/half").exists()


def test_the_longest_unused_go_first_and_those_in_use_stay(tmp_path: Path) -> None:
    clock = FakeClock()
    shelf = EnvironmentCache(str(tmp_path / "envs"), clock=clock)
    keys = ["a" * 64, "b" * 64, "c" * 64]
    for key in keys:
        os.makedirs(shelf.venv(key))
        shelf.keep(EnvironmentReady(digest=key, key=key, interpreter=sys.executable, size_bytes=100))
        clock.advance(10)
        shelf.use(key)
    os.makedirs(shelf.place("d" * 64))
    shelf.mark(keys[0], mine(), "attempt")
    clock.advance(10)
    shelf.use(keys[1])
    prune(shelf, keep_bytes=150, clock=clock)
    assert not os.path.exists(shelf.place("d" * 64))
    assert [one.key for one in shelf.all_kept()] == [keys[0], keys[2], keys[1]], "used a moment ago"
    clock.advance(60)
    assert prune(shelf, keep_bytes=250, clock=clock).freed_bytes == 100
    assert [one.key for one in shelf.all_kept()] == [keys[0], keys[1]]
    prune(shelf, keep_bytes=0, clock=clock)
    assert [one.key for one in shelf.all_kept()] == [keys[0]]
    shelf.unmark(keys[0], "attempt")
    prune(shelf, keep_bytes=0, clock=clock)
    assert shelf.all_kept() == []


def test_a_mark_of_a_process_that_is_gone_holds_nothing(tmp_path: Path) -> None:
    shelf = EnvironmentCache(str(tmp_path / "envs"), clock=FakeClock())
    key = "a" * 64
    os.makedirs(shelf.place(key))
    shelf.keep(EnvironmentReady(digest=key, key=key, interpreter=sys.executable))
    shelf.mark(key, changed(mine(), start_ticks=1), "old")
    assert not shelf.is_used(key)
    shelf.mark(key, mine(), "new")
    assert shelf.is_used(key)


def test_what_interpreters_said_is_remembered_until_their_files_are_others(tmp_path: Path) -> None:
    first = maker_in(tmp_path)
    assert first.platform.pythons
    memory = tmp_path / "envs/interpreters.json"
    said = loads(memory.read_bytes())
    path = next(iter(said))
    said[path][1] = "3.11.99"
    memory.write_text(dumps(said))
    assert "3.11.99" in maker_in(tmp_path).platform.pythons
    said[path][0] = "another file"
    memory.write_text(dumps(said))
    assert "3.11.99" not in maker_in(tmp_path).platform.pythons


def test_a_worker_notices_within_a_minute_that_its_interpreters_are_others(tmp_path: Path) -> None:
    maker_in(tmp_path).report()
    clock = FakeClock()
    around = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    shelf = EnvironmentCache(str(tmp_path / "envs"), clock=clock)
    maker = Maker(shelf=shelf, environment=around, own_prefix=sys.prefix, clock=clock)
    before = maker.report()["pythons"]
    memory = tmp_path / "envs/interpreters.json"
    said = {path: [answer[0], "3.99.1", *answer[2:]] for path, answer in loads(memory.read_bytes()).items()}
    memory.write_text(dumps(said))
    clock.advance(59.0)
    assert maker.report()["pythons"] == before
    clock.advance(1.0)
    assert maker.report()["pythons"] == ("3.99.1",)


def test_the_key_of_an_environment_is_another_on_another_platform() -> None:
    here = Platform(system="linux", machine="aarch64", libc="glibc 2.36", pythons=("3.11.7",))
    key = key_of("a" * 64, here)
    assert key == key_of("a" * 64, changed(here, libc="glibc 2.39", pythons=("3.12.1",)))
    assert (
        len({key, key_of("a" * 64, changed(here, machine="x86_64")), key_of("a" * 64, changed(here, libc="musl"))}) == 3
    )


def builder_of(folder: Path, **environment: str) -> tuple[Maker, OtherUser]:
    """Return a maker that builds as a user that nothing else runs as."""
    folder.chmod(0o755)
    maker, uid = maker_in(folder, UV_NO_INDEX="1", **environment), 21_000_000 + os.getpid()
    user = OtherUser(name=str(uid), uid=uid, gid=uid)
    built = Maker(
        shelf=maker.shelf,
        environment=maker._environment,
        own_prefix=sys.prefix,
        clock=maker._clock,
        user=user,
    )
    return built, user


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Return a folder that other users can reach."""
    folder = tempfile.mkdtemp(prefix="stoker-envs-")
    yield Path(folder)
    shutil.rmtree(folder)


@as_root
def test_as_another_user_no_project_runs_code(open_path: Path) -> None:
    project = open_path / "project"
    project.mkdir()
    write_source(project, open_path / "ran")
    (project / "requirements.txt").write_text("./evil-1.0.tar.gz\n")
    maker, _ = builder_of(open_path)
    answer = maker.make(
        [choice_of(project, "requirements.txt")], project=str(project), say=lambda line: None, is_ours=True
    )
    assert isinstance(answer, EnvironmentImpossible), answer
    assert not (open_path / "ran").exists()


@as_root
@pytest.mark.parametrize("path", ["uv.lock", "requirements.txt", "pyproject.toml"])
def test_what_another_user_built_is_ours_and_that_user_can_not_change_it(open_path: Path, path: str) -> None:
    project = project_in(open_path)
    (project / "requirements.txt").write_text("-r more.txt\n./wheels/alpha-1.0-py3-none-any.whl\n")
    (project / "more.txt").write_text('--find-links wheels\nbeta==1.0; python_version > "3"\n')
    maker, user = builder_of(open_path, SECRET="of the worker")
    said: list[str] = []
    ready = maker.make([choice_of(project, path)], project=str(project), say=said.append, is_ours=True)
    assert isinstance(ready, EnvironmentReady), (ready, said)
    assert ready.packages == {"alpha": "1.0", "beta": "1.0"}
    place = maker.shelf.place(ready.key)
    found = [os.path.join(top, name) for top, folders, names in os.walk(place) for name in (*folders, *names)]
    assert {os.lstat(one).st_uid for one in found} == {0}
    writable = [one for one in found if not os.path.islink(one) and os.stat(one).st_mode & 0o022]
    assert not writable
    assert not os.path.exists(os.path.join(place, "build"))
    assert os.stat(os.path.join(place, "project")).st_mode & 0o077 == 0
    probe = "import alpha, beta, os; print(alpha.VERSION, os.access(alpha.__file__, os.W_OK), os.getuid())"
    child = start_as(user, (ready.interpreter, "-c", probe), cwd="/", env={}, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.read().decode().strip() == f"1.0 False {user.uid}"
    child.stdout.close()
    child.wait()


@as_root
def test_an_interpreter_that_is_closed_to_the_jobs_user_is_refused_to_that_user_alone(open_path: Path) -> None:
    maker, user = builder_of(open_path)
    closed = open_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "python").symlink_to("/usr/bin/python3")
    named = EnvironmentChoice(kind="python", path=str(closed / "python"))
    refused = maker.look([named])
    assert isinstance(refused, EnvironmentImpossible)
    assert refused.why.startswith(f"{closed}/python is not a program that {user.name} may execute")
    gone = maker.look([changed_path(named, closed / "nothing")])
    assert isinstance(gone, EnvironmentImpossible)
    assert gone.why == refused.why.replace("/python is", "/nothing is"), "whether it exists is the worker's secret"
    plain = maker_in(open_path)
    assert isinstance(plain.look([named]), EnvironmentReady)
    other = OtherUser(name="other", uid=user.uid + 1, gid=user.uid + 1)
    digest = own_digest(named.path, "")
    assert digest in plain.report_for([user])["impossible"]
    assert digest not in plain.report()["impossible"]
    assert digest in plain.report_for([other, user])["impossible"], "the next job may run as the user that lacks it"
    assert digest not in plain.report_for([other])["impossible"]
    assert isinstance(plain.for_user(other).look([EnvironmentChoice(kind="python")]), EnvironmentReady)


@as_root
def test_a_worker_reports_the_interpreters_that_all_of_its_users_may_execute(open_path: Path) -> None:
    maker, user = builder_of(open_path)
    other = OtherUser(name="other", uid=user.uid + 1, gid=user.uid + 1)
    (open_path / "bin").mkdir()
    found: list[Python] = []
    for name, group in (("both", 0), ("one", user.gid)):
        path = open_path / "bin" / name
        path.write_text("#!/bin/sh\n")
        os.chown(path, 0, group)
        path.chmod(0o755 if name == "both" else 0o750)
        found.append(Python(path=str(path), version=f"3.{len(found) + 10}.1"))
    maker.interpreters._found, maker.interpreters._found_s = tuple(found), maker._clock.monotonic_s()
    assert maker.report_for([user])["pythons"] == ("3.10.1", "3.11.1")
    for users in ([user, other], [other, user]):
        assert maker.report_for(users)["pythons"] == ("3.10.1",)


@as_root
def test_the_environments_of_many_users_are_read_once(open_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maker, user = builder_of(open_path)
    users = [OtherUser(name=str(uid), uid=uid, gid=uid) for uid in range(user.uid, user.uid + 3)]
    for one in users:
        maker.shelf.refuse(
            EnvironmentImpossible(digest="a" * 64, why="no wheel"), maker.platform.pythons, user=str(one.uid)
        )
    read: list[str] = []

    def read_and_count(path: str, most_bytes: int) -> bytes:
        read.append(path)
        return read_regular(path, most_bytes)

    monkeypatch.setattr("stoker.store.environment_cache.read_regular", read_and_count)
    assert maker.report_for(users)["impossible"] == {"a" * 64: "no wheel"}
    assert len(read) == len(set(read)) == 3


@as_root
def test_a_version_means_an_interpreter_that_the_jobs_user_may_execute(open_path: Path) -> None:
    closed = open_path / "closed"
    closed.mkdir(mode=0o700)
    venv = closed / "bin"
    venv.mkdir()
    shutil.copy2("/usr/bin/python3", venv / "python3")
    maker, _ = builder_of(open_path, PATH=f"{venv}:/usr/bin")
    assert str(venv / "python3") in [one.path for one in maker.interpreters.all()]
    ready = maker.look([EnvironmentChoice(kind="python")])
    assert isinstance(ready, EnvironmentReady)
    assert not ready.interpreter.startswith(str(closed))


@as_root
def test_an_environment_for_the_worker_itself_is_not_one_for_other_users(open_path: Path) -> None:
    project = project_in(open_path)
    choice, plain = choice_of(project), maker_in(open_path, UV_NO_INDEX="1")
    own = plain.make([choice], project=str(project), say=lambda line: None)
    assert isinstance(own, EnvironmentReady), own
    maker, user = builder_of(open_path)
    assert maker.look([choice]) is None
    assert plain.report_for([user])["environments"] == ()
    theirs = maker.make([choice], project=str(project), say=lambda line: None, is_ours=True)
    assert isinstance(theirs, EnvironmentReady), theirs
    assert theirs.key != own.key
    assert plain.look([choice]) == own
    assert plain.report_for([user])["environments"] == plain.report()["environments"] == (choice.digest,)


@as_root
def test_uv_runs_as_the_jobs_user_and_sees_nothing_of_the_workers_environment(open_path: Path) -> None:
    project = open_path / "project"
    project.mkdir()
    (project / "requirements.txt").write_text("alpha\n")
    prefix = fake_uv(open_path, '#!/bin/sh\nid -u\nenv\ncat "${0%/*}/../../state/secret"\nexit 1\n')
    secret = open_path / "state" / "secret"
    secret.parent.mkdir(mode=0o700)
    secret.write_text("of root\n")
    plain, user = builder_of(open_path, SECRET="of the worker", UV_INDEX_URL="http://127.0.0.1:9/simple")
    maker = Maker(
        shelf=plain.shelf,
        environment=plain._environment,
        own_prefix=prefix,
        clock=plain._clock,
        user=user,
    )
    said: list[str] = []
    maker.make([choice_of(project, "requirements.txt")], project=str(project), say=said.append, is_ours=True)
    text = "\n".join(said)
    assert str(user.uid) in said
    assert "UV_INDEX_URL=http://127.0.0.1:9/simple" in said
    assert "of the worker" not in text
    assert "of root" not in text
    assert "Permission denied" in text


@as_root
def test_a_folder_of_the_submitter_is_read_with_the_jobs_rights(open_path: Path) -> None:
    project = open_path / "project"
    project.mkdir()
    secret = open_path / "secret.txt"
    secret.write_text("alpha==1.0\n")
    secret.chmod(0o600)
    (project / "requirements.txt").symlink_to(secret)
    maker, _ = builder_of(open_path)
    choice = choice_of(project, "requirements.txt")
    answer = maker.make([choice], project=str(project), say=lambda line: None)
    assert isinstance(answer, EnvironmentFailed), answer
    assert "permission denied" in answer.why


@as_root
@pytest.mark.parametrize(
    ("plants", "is_kept"), [("echo evil > bin/python", False), ("ln -s / lib; ln -s /etc/shadow bin/pip", True)]
)
def test_links_of_an_environment_are_made_by_us(open_path: Path, plants: str, is_kept: bool) -> None:
    project = open_path / "project"
    project.mkdir()
    (project / "requirements.txt").write_text("alpha\n")
    text = f'#!/bin/sh\n[ "$1" = venv ] || exit 0\nfor one; do :; done; cd "$one"; mkdir bin; {plants}\n'
    plain, user = builder_of(open_path)
    maker = Maker(
        shelf=plain.shelf,
        environment=plain._environment,
        own_prefix=fake_uv(open_path, text),
        clock=plain._clock,
        user=user,
    )
    answer = maker.make(
        [choice_of(project, "requirements.txt")], project=str(project), say=lambda line: None, is_ours=True
    )
    assert isinstance(answer, EnvironmentReady if is_kept else EnvironmentImpossible), answer
    if isinstance(answer, EnvironmentReady):
        venv = Path(maker.shelf.venv(answer.key))
        assert sorted(os.listdir(venv)) == ["bin", "lib64"]
        assert not (venv / "bin/pip").is_symlink()


def fake_uv(folder: Path, text: str) -> str:
    """Write a program in the place of uv; return its prefix."""
    uv = folder / "own" / "bin" / "uv"
    uv.parent.mkdir(parents=True)
    uv.write_text(text)
    uv.chmod(0o755)
    return str(folder / "own")


def write_source(project: Path, mark: Path) -> None:
    """Write a package whose build leaves a mark."""
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "evil"\nbackend-path = ["."]\n',
        "evil.py": f"open({str(mark)!r}, 'w').close()\nraise SystemExit('no')\n",
        "PKG-INFO": "Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n",
    }
    with tarfile.open(project / "evil-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"evil-1.0/{name}")
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))


def test_after_a_build_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    project, maker = project_in(tmp_path), maker_in(tmp_path)
    old = EnvironmentReady(digest="a" * 64, key="b" * 64, interpreter=sys.executable, size_bytes=1 << 30)
    os.makedirs(maker.shelf.place(old.key))
    maker.shelf.keep(old)
    used_s = maker._clock.wall_s() - 61
    os.utime(os.path.join(maker.shelf.place(old.key), "ready.json"), (used_s, used_s))
    tidy = Maker(
        shelf=maker.shelf,
        environment=maker._environment,
        own_prefix=sys.prefix,
        clock=maker._clock,
        keep_bytes=0,
    )
    ready = tidy.make([choice_of(project)], project=str(project), say=lambda line: None)
    assert isinstance(ready, EnvironmentReady)
    assert [one.key for one in maker.shelf.all_kept()] == [ready.key]


def test_an_environment_of_a_python_that_was_replaced_is_made_again(tmp_path: Path) -> None:
    project, maker = project_in(tmp_path), maker_in(tmp_path)
    choice = choice_of(project)
    ready = maker.make([choice], project=str(project), say=lambda line: None)
    assert isinstance(ready, EnvironmentReady)
    memory = tmp_path / "envs/interpreters.json"
    said = {path: [answer[0], "3.99.1", *answer[2:]] for path, answer in loads(memory.read_bytes()).items()}
    memory.write_text(dumps(said))
    assert maker_in(tmp_path).look([choice]) is None


def test_names_from_elsewhere_are_never_options(tmp_path: Path) -> None:
    project = project_in(tmp_path)
    lock = gather(str(project), "uv.lock")
    hostile = changed(lock, extras=("--index-url=http://evil",), path="-evil/uv.lock")
    work = Build(
        uv="uv",
        sources=hostile,
        folder=str(project),
        venv="/v",
        base=Python(path="/usr/bin/python3", version="3.11.2"),
        environment={},
        platform=Platform(system="linux", machine="x86_64", libc="glibc 2.36", pythons=("3.11.2",)),
    )
    (sync,) = commands(work)
    assert "--extra=--index-url=http://evil" in sync
    _, install = commands(changed(work, sources=changed(hostile, kind="requirements", path="sub/-r.txt")))
    assert "--requirement=./-r.txt" in install


def test_what_can_not_be_is_forgotten_in_time(tmp_path: Path) -> None:
    clock = FakeClock()
    shelf = EnvironmentCache(str(tmp_path / "envs"), clock=clock)
    shelf.refuse(EnvironmentImpossible(digest="a" * 64, why="no wheel"), ("3.11.7",))
    shelf.refuse(EnvironmentImpossible(digest="b" * 64, why="no Python"), ("3.11.7",), for_s=600.0)
    clock.advance(599)
    assert shelf.all_refused({"": ("3.11.7",)}) == {"a" * 64: "no wheel", "b" * 64: "no Python"}
    clock.advance(2)
    assert shelf.all_refused({"": ("3.11.7",)}) == {"a" * 64: "no wheel"}
    clock.advance(24 * 3600)
    assert shelf.all_refused({"": ("3.11.7",)}) == {}
    assert not list((tmp_path / "envs/impossible").iterdir()), "what is over takes no room"


def test_what_is_refused_to_one_user_is_not_refused_to_another(tmp_path: Path) -> None:
    shelf = EnvironmentCache(str(tmp_path / "envs"), clock=FakeClock())
    pythons = ("3.11.7",)
    refused = EnvironmentImpossible(digest="a" * 64, why="no wheel")
    shelf.refuse(refused, pythons, user="60000")
    assert shelf.refused("a" * 64, pythons, user="60000") == refused
    assert shelf.all_refused({"60000": pythons}) == {"a" * 64: "no wheel"}
    for other in ("", "60001"):
        assert shelf.refused("a" * 64, pythons, user=other) is None
        assert shelf.all_refused({other: pythons}) == {}
    shelf.refuse(changed(refused, why="no index"), pythons)
    assert shelf.refused("a" * 64, pythons, user="60000") == refused
