"""Programs that do their worst: whatever it is, it has a name, it ends, and nothing of it is left."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import Cancelled, ContainmentUnavailable, NoSpace, OutOfMemory, ProcessLost, StageFailed
from stoker.devices.admission import MachineMemory
from stoker.engine.runners.program import launch
from stoker.engine.runners.program.launch import ProgramContext
from stoker.engine.runners.program.program_runner import ProgramRunner
from stoker.host.containment.mechanisms import choose_mechanism
from tests.unit.engine.lab import TRAINER, Lab, containment, message_of, quick_folder
from tests.unit.engine.programs import Project
from tests.unit.host.real_mounts import small_disk
from tests.unit.host.real_processes import is_running, wait_until

MIB = 2**20


@pytest.fixture(autouse=True)
def _in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_LAST_WORDS_S", 0.15)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with quick_folder() as folder, Lab(folder / "lab") as lab:
        yield Project(lab, tmp_path / "project")


@pytest.fixture(params=["cgroup1", "address_space", "watchdog", "bare"])
def contained(project: Project, request: pytest.FixtureRequest) -> Project:
    """The same by every mechanism that this machine has."""
    try:
        containment = choose_mechanism(request.param, environment={})
    except ContainmentUnavailable as error:
        pytest.skip(str(error))
    around = ProgramContext(
        environment=dict(os.environ), own_prefix=sys.prefix, trainer_folder=str(TRAINER), has_gpus=False
    )
    project.lab.programs = ProgramRunner(around, lambda: containment, project.lab.clock)
    return project


def pids_in(path: Path) -> list[int]:
    return [int(word) for word in path.read_text().split()]


def seconds_of(start_s: float) -> float:
    return time.monotonic() - start_s


LEAVE = {
    "in its group": "if os.fork() == 0: rest()",
    "in a session of its own": "if os.fork() == 0: os.setsid(); rest()",
    "by a double fork": "if os.fork() == 0:\n os.setsid()\n if os.fork() == 0: rest()\n os._exit(0)",
    "with closed streams": "if os.fork() == 0: os.setsid(); os.close(1); os.close(2); rest()",
    "deaf": "if os.fork() == 0: os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN); rest()",
    "talking": "if os.fork() == 0:\n os.setsid()\n for _ in range(10**9): os.write(1, b'still here\\n' * 1000)",
}


@pytest.mark.timing
@pytest.mark.parametrize("how", LEAVE)
def test_children_that_are_left_behind_are_stopped_and_told_and_the_program_has_not_failed(
    project: Project, how: str
) -> None:
    leave_behind(project, how)


@pytest.mark.timing
def test_children_that_left_their_session_are_stopped_by_every_mechanism(contained: Project) -> None:
    leave_behind(contained, "by a double fork")


def leave_behind(project: Project, how: str) -> None:
    body = f"""
import os, signal, time
def rest():
    open("pids", "a").write(f"{{os.getpid()}} ")
    time.sleep(60)
{LEAVE[how]}
if {how != "talking"}:
    while not os.path.exists("pids"): time.sleep(0.001)
print("bye", flush=True)
"""
    start_s = time.monotonic()
    ran = project.lab.run(project.python(body))
    assert message_of(ran.result.error) == ""
    assert seconds_of(start_s) < 10
    assert "it ended and left" in project.told(ran)
    if how != "talking":
        assert project.lab.log("run") == "bye\n"
        assert not any(is_running(pid) for pid in pids_in(project.folder / "pids"))


def test_a_child_that_ends_by_itself_right_after_is_nothing_to_tell(project: Project) -> None:
    ran = project.lab.run(project.python("import os, time\nif os.fork() == 0: time.sleep(0.03)"))
    assert message_of(ran.result.error) == ""
    assert project.told(ran) == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_signal_from_outside_has_its_name(contained: Project, number: signal.Signals) -> None:
    flight = contained.lab.start(contained.shell("echo $$ > pids; exec sleep 60"))
    wait_until(lambda: (contained.folder / "pids").exists() and bool(pids_in(contained.folder / "pids")))
    os.kill(pids_in(contained.folder / "pids")[0], number)
    error = flight.land().result.error
    assert isinstance(error, StageFailed if number is signal.SIGSEGV else ProcessLost)
    assert f"died by signal {number.value} ({number.name})" in message_of(error)


@pytest.mark.timing
def test_one_that_does_not_listen_is_killed_when_its_grace_is_over(contained: Project) -> None:
    body = """
    import os, signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0: os.setsid()
    open("pids", "a").write(f"{os.getpid()} ")
    time.sleep(60)
    """
    flight = contained.lab.start(contained.python(body), grace_s=0.2)
    wait_until(lambda: (contained.folder / "pids").exists() and len(pids_in(contained.folder / "pids")) == 2)
    start_s = time.monotonic()
    flight.executor.cancel(Cancelled("enough"))
    assert flight.land().endings == {"run": "cancelled"}
    assert seconds_of(start_s) < 8
    assert not any(is_running(pid) for pid in pids_in(contained.folder / "pids"))
    assert contained.lab.staged() == []


def test_one_that_has_stopped_itself_can_be_cancelled(project: Project) -> None:
    flight = project.lab.start(project.shell("echo $$ > pids; kill -STOP $$; sleep 60"), grace_s=0.2)
    wait_until(lambda: (project.folder / "pids").exists() and bool(pids_in(project.folder / "pids")))
    flight.executor.cancel(Cancelled("enough"))
    assert flight.land().endings == {"run": "cancelled"}
    assert not is_running(pids_in(project.folder / "pids")[0])


def test_one_that_closes_its_streams_goes_on_to_its_end(project: Project) -> None:
    body = """
    import os, time
    os.close(0); os.close(1); os.close(2)
    time.sleep(0.4)
    open(os.environ["STOKER_OUT"] + "/a", "w").write("done")
    """
    assert project.files(project.lab.run(project.python(body))) == {"a": "done"}


def test_one_that_eats_all_memory_is_killed_at_its_cap_and_the_cause_is_named(contained: Project) -> None:
    if contained.lab.programs._containment().mechanism == "bare":
        pytest.skip("nothing limits it")
    contained.lab.memory = MachineMemory(total_bytes=400 * MIB, available_bytes=300 * MIB)
    body = 'x = []\nfor _ in range(4000): x.append(b"x" * (1 << 20))'
    ran = contained.lab.run(contained.python(body))
    error = ran.result.error
    assert isinstance(error, OutOfMemory), message_of(error)
    assert error.exit_code == 46
    assert error.data["cause"] == "oom_host"
    assert contained.lab.staged() == []
    if "MemoryError" not in message_of(error):
        assert "it was killed at its cap of 360.0 MiB" in message_of(error)


@pytest.mark.timing
@pytest.mark.parametrize(("then", "who"), [("exit 7", "it"), ("exit 0", "a process of it"), ("sleep 60", "it")])
def test_whoever_of_it_was_killed_for_memory_that_is_why_it_failed_and_the_others_go_too(
    project: Project, then: str, who: str
) -> None:
    if containment().mechanism not in ("cgroup1", "cgroup2", "systemd"):
        pytest.skip("nobody is killed by the kernel")
    project.lab.memory = MachineMemory(total_bytes=200 * MIB, available_bytes=200 * MIB)
    start_s = time.monotonic()
    ran = project.lab.run(project.shell(f"{sys.executable} -S -E -c 'x = bytearray(2 << 30)'; {then}"))
    assert isinstance(ran.result.error, OutOfMemory)
    assert ran.result.error.exit_code == 46
    # Whether it ends by itself before it is made to go with the others is a race; who lost it is told as it was.
    whos = {who, "it"}
    said = message_of(ran.result.error)
    assert said in {f"run: out of memory: {one} was killed at its cap of 180.0 MiB" for one in whos}
    assert seconds_of(start_s) < 10
    assert project.lab.staged() == []


def flood(project: Project, size_bytes: int, line: str) -> tuple[float, int]:
    """Print much; gives how long that took and by how much we grew."""
    last = '{"kind":"done","metrics":{"loss":0.25}}' if "kind" in line else "step=7 loss=0.25"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start_s = time.monotonic()
    ran = project.lab.run(project.shell(f"yes '{line}' | head -c {size_bytes}; echo; echo '{last}'"))
    assert message_of(ran.result.error) == ""
    assert project.record(ran).body["metrics"]["loss"] == 0.25
    logs = [path.stat().st_size for path in (project.lab.folder / "logs").iterdir()]
    assert sum(logs) <= 128 * MIB + 2**20
    with (project.lab.folder / "logs/run.log").open("rb") as file:
        file.seek(-len(last) - 1, os.SEEK_END)
        assert file.read() == f"{last}\n".encode()
    return seconds_of(start_s), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


@pytest.mark.timing
@pytest.mark.parametrize(
    "line", ["a line that says nothing at all", "step=1 loss=0.5 acc=3", '{"kind":"step","step":1}']
)
def test_a_flood_of_output_costs_neither_memory_nor_the_last_value(project: Project, line: str) -> None:
    flood(project, 4 * MIB, line)
    _, grown_bytes = flood(project, 44 * MIB, line)
    assert grown_bytes < 32 * MIB


@pytest.mark.timing
@pytest.mark.slow
@pytest.mark.parametrize("line", ["a line that says nothing at all", "step=1 loss=0.5 acc=3"])
def test_a_gigabyte_of_output_costs_neither_memory_nor_minutes(project: Project, line: str) -> None:
    took_s, grown_bytes = flood(project, 1000 * MIB, line)
    assert grown_bytes < 64 * MIB
    assert took_s < 60


@pytest.mark.timing
def test_a_line_without_an_end_costs_no_memory(project: Project) -> None:
    project.lab.run(project.shell("true"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    body = "head -c 60000000 /dev/zero | tr '\\0' x; head -c 60000000 /dev/zero | tr '\\0' y >&2; exit 3"
    ran = project.lab.run(project.shell(body))
    assert len(message_of(ran.result.error)) < 400
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 16 * MIB


def test_bytes_that_are_no_text_are_kept_as_they_are_and_nan_is_a_value(project: Project) -> None:
    noise = bytes(range(256))
    body = f"""
    import sys
    sys.stdout.buffer.write({noise!r} + b'\\nloss=nan acc=-inf\\n')
    sys.stderr.buffer.write({noise!r})
    raise SystemExit(1)
    """
    ran = project.lab.run(project.python(body))
    assert message_of(ran.result.error).startswith("run: exit 1: ")
    assert (project.lab.folder / "logs/run.log").read_bytes().count(noise) == 2
    names = {name for _, name, _ in project.rows()}
    assert {"loss", "acc"} <= names


def test_a_program_that_fills_the_disk_itself_has_no_space_left(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=8m") as disk, Lab(tmp_path / "lab", store=disk / "store") as lab:
        project = Project(lab, tmp_path / "project")
        ran = lab.run(project.python('import os\nopen(os.environ["STOKER_OUT"] + "/x", "wb").write(b"x" * (16 << 20))'))
        assert isinstance(ran.result.error, NoSpace)
        assert ran.result.error.exit_code == 10
        assert lab.staged() == []
        assert lab.run(project.shell("true")).result.error is None


def test_outputs_that_the_store_has_no_room_for_are_no_space_left(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=8m") as disk, Lab(tmp_path / "lab", store=disk / "store") as lab:
        project = Project(lab, tmp_path / "project")
        ran = lab.run(project.shell("head -c 16000000 /dev/zero > big", outputs=("big",)))
        assert isinstance(ran.result.error, NoSpace)
        assert lab.staged() == []
        assert (project.folder / "big").stat().st_size == 16_000_000


def test_a_log_that_has_no_room_costs_the_log_and_not_the_work(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=2m") as disk, Lab(tmp_path / "lab") as lab:
        (tmp_path / "lab" / "logs").symlink_to(disk)
        project = Project(lab, tmp_path / "project")
        ran = lab.run(project.shell("head -c 8000000 /dev/zero; echo; echo loss=2; echo 1 > $STOKER_OUT/a"))
        assert message_of(ran.result.error) == ""
        assert project.files(ran) == {"a": "1\n"}
        assert "of its output could not be kept" in project.told(ran)
        assert project.record(ran).body["metrics"] == {"loss": 2.0}


@pytest.mark.timing
@pytest.mark.parametrize(
    "put",
    ["os.mkfifo(path)", "os.mkdir(path)", "os.symlink('/dev/zero', path)", "os.truncate(os.open(path, 66), 1 << 40)"],
)
def test_whatever_it_puts_in_the_place_of_its_files_nobody_waits(project: Project, put: str) -> None:
    body = f"""
    import os, time
    for path in (os.environ["STOKER_CONTROL"], os.environ["STOKER_METRICS"]):
        {put}
    time.sleep(0.3)
    """
    start_s = time.monotonic()
    ran = project.lab.run(project.python(body))
    assert message_of(ran.result.error) == ""
    assert seconds_of(start_s) < 8
    left = [path for path in (project.lab.folder / "metrics").iterdir() if not path.is_file() or path.is_symlink()]
    assert left == []


def test_one_that_removes_everything_it_was_given_ends_as_it_ends(project: Project) -> None:
    body = """
    import os, shutil
    for name in ("STOKER_SCRATCH", "STOKER_OUT"):
        shutil.rmtree(os.environ[name])
    shutil.rmtree(os.path.dirname(os.environ["STOKER_CONTROL"]))
    shutil.rmtree(os.getcwd())
    print("loss=1")
    """
    ran = project.lab.run(project.python(body))
    assert "the output folder was removed" in message_of(ran.result.error)
    assert project.lab.staged() == []


def test_one_that_fills_its_scratch_with_odd_things_can_run_again(project: Project) -> None:
    body = """
    import os
    os.chdir(os.environ["STOKER_SCRATCH"])
    first = not os.path.exists("here")
    open("here", "w").close()
    if first:
        os.unlink("marker.json"); os.mkdir("marker.json"); os.mkfifo("checkpoints.json")
        raise SystemExit(1)
    """
    assert isinstance(project.lab.run(project.python(body)).result.error, StageFailed)
    assert isinstance(project.lab.run(project.python(body)).result.error, StageFailed)
    (scratch,) = project.scratches()
    assert (scratch / "marker.json").is_dir()


def test_odd_names_of_variables_reach_it(contained: Project) -> None:
    names = ["A-B", "a.b", "é", "1X", "IFS", "PPID", "_", "ENV", "PS4", "limit", "%", "a b", "BASH_FUNC_x%%"]
    body = f"""
    import os
    missing = [name for name in {names!r} if os.environ.get(name) != "value = 1\\n 2"]
    open(os.environ["STOKER_OUT"] + "/missing", "w").write(repr(missing))
    """
    ran = contained.lab.run(contained.python(body, env=dict.fromkeys(names, "value = 1\n 2")))
    assert contained.files(ran) == {"missing": "[]"}


def test_a_box_that_can_not_be_had_is_said_and_nothing_runs(project: Project) -> None:
    class Broken:
        mechanism = "cgroup1"
        warning = ""

        def open(self, name: str, limits: object, mark: str) -> None:
            raise ContainmentUnavailable("no groups today", hint="tomorrow")

    around = ProgramContext(environment=dict(os.environ), own_prefix=sys.prefix, trainer_folder="", has_gpus=False)
    project.lab.programs = ProgramRunner(around, Broken, project.lab.clock)  # type: ignore[arg-type]
    ran = project.lab.run(project.shell("touch ran"))
    assert isinstance(ran.result.error, ContainmentUnavailable)
    assert ran.result.error.exit_code == 42
    assert not (project.folder / "ran").exists()
    assert project.scratches() == []
