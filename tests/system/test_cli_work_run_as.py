"""`stoker work --run-as`: jobs that try what they must not. As root, with users that nobody has."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stoker.core.job import EnvironmentChoice, JobSpec, job_id
from stoker.core.machine import Requirements
from stoker.host.user_switch import processes_of
from stoker.host.users import why_not_allowed
from stoker.jobs.pack.environment_files import gather
from stoker.protocol.job_messages import Submission
from tests.system.fleet_desk import FleetDesk
from tests.system.shell import PATIENCE_S, Shell, wait_until
from tests.unit.worker.tiny_wheels import wheel

SYSTEM_PYTHON = "/usr/bin/python3"
# Of this process alone: whoever runs as a user is ended with its job, and tests run beside each other.
FIRST = 20_000_000 + 2 * os.getpid()
SECOND = FIRST + 1

pytestmark = pytest.mark.skipif(
    bool(why_not_allowed()) or not os.path.exists(SYSTEM_PYTHON),
    reason=f"programs of other users: {why_not_allowed() or 'no Python that everybody may use'}",
)

HOSTILE = r"""
import json, os, signal, subprocess, sys
worker, home, victim = int(sys.argv[1]), sys.argv[2], open("victim.txt").read().strip()
tried = {}
def attempt(name, act):
    try:
        tried[name] = repr(act())[:200]
    except OSError as error:
        tried[name] = error.errno
read = lambda path: open(path, "rb").read(40)
attempt("token", lambda: read(f"{home}/state/operator.token"))
attempt("home", lambda: os.listdir(home))
attempt("store", lambda: os.listdir(f"{home}/store"))
attempt("runs", lambda: os.listdir(f"{home}/runs"))
attempt("scratch", lambda: os.listdir(f"{home}/scratch"))
attempt("worker's environment", lambda: read(f"/proc/{worker}/environ"))
attempt("worker's memory", lambda: read(f"/proc/{worker}/mem"))
attempt("signal", lambda: os.kill(worker, signal.SIGTERM))
attempt("another's result", lambda: os.listdir(victim))
attempt("another's secret", lambda: read(f"{victim}/secret.txt"))
attempt("root again", lambda: os.setuid(0))
tried["user"] = [os.getuid(), os.getgid(), os.getgroups(), os.environ["HOME"], os.environ["USER"], os.getcwd()]
tried["environment"] = sorted(name for name in os.environ if "TOKEN" in name or name == "HIDDEN")
tried["open"] = sorted(os.listdir("/proc/self/fd"))
daemon = "import os,time; print(os.getpid(), flush=True); time.sleep(600)"
started = subprocess.Popen([sys.executable, "-c", daemon], env={}, stdout=subprocess.PIPE, start_new_session=True)
tried["daemon"] = int(started.stdout.readline())
out = os.environ["STOKER_OUT"]
os.symlink("/etc/shadow", f"{out}/planted") if len(sys.argv) > 3 else None
json.dump(tried, open(f"{out}/report.json", "w"))
"""
VICTIM = """
umask 022
echo mine > $STOKER_OUT/secret.txt
chmod 777 $STOKER_OUT $STOKER_OUT/secret.txt
echo $STOKER_OUT > victim.new && mv victim.new victim.txt
while [ ! -e enough ]; do sleep 0.05; done
"""


@pytest.fixture(scope="module", autouse=True)
def no_locks_left() -> Iterator[None]:
    """Locks on users are the machine's, and stay until it boots; these users exist for this process only."""
    yield
    for number in (FIRST, SECOND):
        Path(f"/run/stoker/users/{number}.lock").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def shell(index: Path) -> Iterator[Shell]:
    """A home that other users may pass to, and a folder where everybody may write."""
    base = Path(tempfile.mkdtemp(prefix="stoker-run-as-"))
    base.chmod(0o755)
    made = Shell(base, index=index)
    made.folder.chmod(0o777)
    made.env["HIDDEN"] = "the worker's own"
    yield made
    shutil.rmtree(base)


def see_declined_for_a_closed_interpreter(desk: FleetDesk, shell: Shell) -> None:
    """Submit programs whose interpreter lies in a folder of root: they are declined, and not charged an attempt."""
    closed = shell.home / "state/python"
    closed.symlink_to(SYSTEM_PYTHON)
    desk.submit("closed", str(closed), "-c", "", folder=shell.folder)
    choice = EnvironmentChoice(kind="python", path=str(closed))
    desk.submit("named", "python", "-c", "", folder=shell.folder, environment=(choice,))

    def endings(name: str) -> set[str]:
        return {one.ending for one in desk.client.job(name).attempts if one.ending}

    wait_until(lambda: all(map(endings, ("closed", "named"))))
    for name in ("closed", "named"):
        assert endings(name) == {"declined"}
        assert f"{closed} is not a program that" in shell.stoker("explain", name).out


def test_jobs_of_other_users_reach_neither_the_worker_nor_each_other(shell: Shell):
    serving = shell.start("serve", "--listen", "127.0.0.1:0", "--json")
    assert serving.stdout is not None
    url = str(json.loads(serving.stdout.readline())["url"])
    working = shell.start("work", "--join", url, "--slots", "2", "--run-as", f"{FIRST}-{SECOND}", "--name", "jail")
    try:
        with FleetDesk(url, shell.home) as desk:
            desk.submit("victim", "/bin/sh", "-c", VICTIM, folder=shell.folder)
            wait_until((shell.folder / "victim.txt").exists)
            (shell.folder / "hostile.py").write_text(HOSTILE)
            words = (SYSTEM_PYTHON, "hostile.py", str(working.pid), str(shell.home))
            desk.submit("hostile", *words, folder=shell.folder)
            desk.submit("planting", *words, "plants", folder=shell.folder)
            see_declined_for_a_closed_interpreter(desk, shell)
            wait_until(lambda: desk.states()["hostile"][0] in ("completed", "failed"))
            wait_until(lambda: desk.states()["planting"][0] in ("completed", "failed"))
            (shell.folder / "enough").touch()
            wait_until(lambda: desk.states()["victim"][0] in ("completed", "failed"))
            states = {name: state for name, (state, _) in desk.states().items()}
        assert shell.stoker("get", "hostile", "got").code == 0
        assert working.poll() is None, "a job ended its worker"
    finally:
        for one in (working, serving):
            one.send_signal(signal.SIGTERM)
            one.communicate(timeout=PATIENCE_S)
    ended = {"victim": "completed", "hostile": "completed", "planting": "failed"}
    assert states == {**ended, "closed": "pending", "named": "pending"}
    tried = json.loads(next((shell.folder / "got").rglob("report.json")).read_text())
    number = tried["user"][0]
    assert number in (FIRST, SECOND)
    assert tried["user"][1:3] == [number, []]
    refused = {name: value for name, value in tried.items() if name not in ("user", "daemon", "environment", "open")}
    assert refused == dict.fromkeys(refused, refused["token"]) | {"signal": 1, "root again": 1}
    assert refused["token"] == 13
    assert tried["environment"] == ["STOKER_TOKEN"]
    assert tried["open"] == ["0", "1", "2", "3"], "three streams, and the folder that it lists"
    assert not processes_of(FIRST)
    assert not processes_of(SECOND)
    assert not os.path.exists(f"/proc/{tried['daemon']}")
    assert not list((shell.home / "scratch" / ".quarters").iterdir())


ENVIRONMENT = """
import alpha, json, os
may_write = [os.access(path, os.W_OK) for path in (alpha.__file__, os.path.dirname(alpha.__file__))]
told = [alpha.VERSION, os.getuid(), *may_write]
json.dump(told, open(os.environ["STOKER_OUT"] + "/told.json", "w"))
"""


def write_projects(good: Path, evil: Path, mark: Path) -> None:
    """Write a project with an environment, and one that has the environment's files lead to a file of root.

    Whatever process imports the first one's code as root leaves a mark.
    """
    wheel(str(good / "wheels"), "alpha")
    (good / "requirements.txt").write_text("--find-links wheels\nalpha==1.0\n")
    (good / "sitecustomize.py").write_text(f"import os\nos.getuid() or open({str(mark)!r}, 'w')\n")
    (evil / "home/state").mkdir(parents=True)
    # It passes for a file of the project, until a program expands the variable.
    (evil / "home/state/secrets.env").write_text("")
    (evil / "requirements.txt").write_text("-r ${STOKER_HOME}/../home/state/secrets.env\n")
    for folder in (good, evil):
        (folder / "train.py").write_text(ENVIRONMENT)
        (folder / "data.txt").write_text(folder.name)


def smuggling(project: Path, tree: str) -> Submission:
    """Order a recipe, which runs as the worker, with code and an environment that would be on its path."""
    identity = {"value": 4}
    digest = gather(str(project), "requirements.txt").digest
    order = JobSpec(
        id=job_id(recipe="toy/sum", schema_version=1, args=identity),
        name="smuggler",
        recipe="toy/sum",
        args={**identity, "ledger": ""},
        identity=identity,
        code_tree=tree,
        environment=(EnvironmentChoice(kind="requirements", path="requirements.txt", digest=digest),),
        requirements=Requirements(ram_bytes=1 << 28),
    )
    return Submission(jobs=(order,))


def submit_from(folder: Path, shell: Shell) -> None:
    """Submit a project's program with its environment, from its folder."""
    work, shell.folder = shell.folder, folder
    wishes = ("--name", folder.name, "--env", "requirements.txt", "-y", "memory=256M", "inputs=data.txt")
    done = shell.stoker("submit", *wishes, "--", "python", "train.py")
    shell.folder = work
    assert done.code == 0, done.err


def spying(path: Path, folder: Path) -> Submission:
    """Order a program that declares a file of root as its input: its digest would stand in the result's record."""
    args: dict[str, Any] = {"argv": ["true"], "inputs": [str(path)], "params": {}}
    wanted = job_id(recipe="command", schema_version=1, args=args)
    order = JobSpec(id=wanted, name="spy", recipe="command", folder=str(folder), args=args, identity=args)
    return Submission(jobs=(order,))


def guessing(path: Path, folder: Path) -> Submission:
    """Order a program whose id names a digest of a file of root: how it is refused would tell whether that is it."""
    args: dict[str, Any] = {"argv": ["true"], "inputs": [str(path)], "params": {}}
    identity = {**args, "inputs": [{"content": f"sha256:{'0' * 64}"}]}
    wanted = job_id(recipe="command", schema_version=1, args=identity)
    order = JobSpec(id=wanted, name="guesser", recipe="command", folder=str(folder), args=args, identity=identity)
    return Submission(jobs=(order,))


def test_environments_of_jobs_are_built_as_their_users_and_no_file_of_root_is_read_for_them(shell: Shell):
    good, evil = shell.folder / "good", shell.folder / "evil"
    mark = shell.home / "smuggled"
    write_projects(good, evil, mark)
    shell.env |= {"UV_OFFLINE": "1", "UV_NO_INDEX": "1"}
    serving = shell.start("serve", "--listen", "127.0.0.1:0", "--json")
    assert serving.stdout is not None
    url = str(json.loads(serving.stdout.readline())["url"])
    (shell.home / "state/secrets.env").write_text("MY_TOKEN = 'of root alone'\n")
    (shell.home / "state/secrets.env").chmod(0o600)
    working = shell.start("work", "--join", url, "--slots", "2", "--run-as", f"{FIRST}-{SECOND}", "--name", "jail")
    users = shell.home / "state/worker/jail/users"
    try:
        with FleetDesk(url, shell.home) as desk:
            desk.client.submit(spying(shell.home / "state/secrets.env", shell.folder))
            desk.client.submit(guessing(shell.home / "state/secrets.env", shell.folder))
            for folder in (good, evil):
                submit_from(folder, shell)
            wait_until(lambda: desk.states()["good"][0] in ("completed", "failed"))
            wait_until(lambda: "other users" in shell.stoker("explain", "evil").out)
            assert desk.states()["good"][0] == "completed", shell.stoker("logs", "good").out
            assert desk.states()["evil"][0] == "pending"
            desk.client.submit(smuggling(good, desk.client.job("good").attempts[-1].facts["code_tree"]))
            wait_until(lambda: "the job brings its own" in shell.stoker("explain", "smuggler").out)
            wait_until(lambda: desk.states()["spy"][0] == "failed")
            wait_until(lambda: desk.states()["guesser"][0] == "failed")
            for name in ("spy", "guesser"):
                assert "did not come with the job" in shell.stoker("jobs", "show", name).out
            wait_until(lambda: not list(users.glob("[0-9]*")))
            shown = "".join(shell.stoker(*words, "evil").out for words in (("logs",), ("explain",), ("jobs", "show")))
        assert shell.stoker("get", "good", "built").code == 0
    finally:
        for one in (working, serving):
            one.send_signal(signal.SIGTERM)
            one.communicate(timeout=PATIENCE_S)
    assert "of root alone" not in shown
    assert not mark.exists()
    version, number, *may_write = json.loads(next((shell.folder / "built").rglob("told.json")).read_text())
    assert (version, may_write) == ("1.0", [False, False])
    assert number in (FIRST, SECOND)
    assert not processes_of(FIRST)
    assert not processes_of(SECOND)


@pytest.mark.slow
def test_a_worker_that_was_killed_finds_its_job_again_and_gives_its_user_to_nobody_else(index: Path):
    base = Path(tempfile.mkdtemp(prefix="stoker-run-as-"))
    base.chmod(0o755)
    shell = Shell(base, index=index)
    shell.folder.chmod(0o777)
    serving = shell.start("serve", "--listen", "127.0.0.1:0", "--json")
    assert serving.stdout is not None
    url = str(json.loads(serving.stdout.readline())["url"])
    words = ("work", "--join", url, "--slots", "2", "--run-as", f"{FIRST}-{SECOND}", "--name", "jail")
    working = shell.start(*words)
    try:
        with FleetDesk(url, shell.home) as desk:
            desk.submit("first", "/bin/sh", "-c", f"id -u > first.uid\n{VICTIM}", folder=shell.folder)
            wait_until((shell.folder / "victim.txt").exists)
            working.kill()
            working.communicate(timeout=PATIENCE_S)
            working = shell.start(*words)
            desk.submit("second", "/bin/sh", "-c", "id -u > second.uid", folder=shell.folder)
            wait_until(lambda: desk.states()["second"][0] == "completed")
            assert desk.states()["first"][0] == "running"
            (shell.folder / "enough").touch()
            wait_until(lambda: desk.states()["first"][0] == "completed")
    finally:
        for one in (working, serving):
            one.send_signal(signal.SIGTERM)
            one.communicate(timeout=PATIENCE_S)
    users = {(shell.folder / f"{name}.uid").read_text().strip() for name in ("first", "second")}
    assert users == {str(FIRST), str(SECOND)}
    shutil.rmtree(base)
