"""What every launcher does, on real backends."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest

from stoker import __version__
from stoker.core.errors import InvalidCluster, LaunchDoubtful, StokerError
from stoker.core.frozen import changed, frozen
from stoker.core.pool import FREE_CAUSES, Allocation, AllocationCause, AllocationState, Pool, PoolBackend, PoolShape
from stoker.devices.checkup import CheckStatus
from stoker.host.command_runner import ProbeFailure, Reply, SubprocessRunner
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings, Transport
from stoker.launch.commands import HostCommands, public_environment
from stoker.launch.hosts import HostLauncher
from stoker.launch.kubernetes import KubernetesLauncher
from stoker.launch.ray import RayLauncher
from stoker.launch.ray_actors import RayActors
from stoker.launch.slurm import SlurmLauncher
from tests.contract.launcher_cases import SECRET, LauncherCase, make_stand_in, tickets
from tests.servers.kubernetes_api import KubernetesApi
from tests.servers.ray_head import PORT as RAY_PORT
from tests.servers.ray_head import ray_without_dashboard, why_no_ray
from tests.servers.ray_jobs import TOKEN as RAY_TOKEN
from tests.servers.ray_jobs import RayJobs
from tests.servers.slurm import SlurmCluster
from tests.servers.sshd import sshd, why_no_sshd

ENDED, STARTED = AllocationState.ENDED, AllocationState.STARTED


class LosingCommands(HostCommands):
    """Runs commands whose output does not come."""

    def run(self, where: str, argv: object, **options: object) -> Reply:
        reply = super().run(where, argv, **options)  # type: ignore[arg-type]
        # Tickets of Slurm and Kubernetes are written before, by another command.
        words = cast("Sequence[str]", argv)
        is_script = words == ("sh", "-s") and "setsid" in str(options["stdin"])
        is_job = "create" in words and '"kind": "Job"' in str(options["stdin"])
        is_submit = is_script or is_job or "--parsable" in words or "submit" in words
        return ProbeFailure(why="timed out after 30 s", code="probe_timeout") if is_submit else reply


@frozen
class Login:
    """A host that is reached by SSH."""

    ssh: tuple[str, ...]
    host: str
    control: str

    def commands(self, kind: type[HostCommands]) -> HostCommands:
        runner = SubprocessRunner(public_environment(os.environ))
        return kind(runner, control_folder=self.control, ssh=self.ssh)


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Login]:
    """One host for all tests, and one connection to it."""
    if why := why_no_sshd():
        pytest.skip(why)
    # A short path: sockets lie in it.
    with (
        sshd(tmp_path_factory.mktemp("host") / "sshd") as words,
        TemporaryDirectory(prefix="stoker-ssh-") as control,
    ):
        made = Login(ssh=tuple(words[:-1]), host=words[-1], control=control)
        commands = made.commands(HostCommands)
        commands.read(made.host, ["true"])
        yield made
        commands.close()


@pytest.fixture(
    params=["local", "ssh", "slurm", "kubernetes", "ray", pytest.param("ray_actors", marks=pytest.mark.slow)]
)
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LauncherCase]:
    match request.param:
        case "slurm":
            found = slurm_case(tmp_path, request.getfixturevalue("slurm_cluster"))
        case "ssh":
            found = ssh_case(tmp_path, request.getfixturevalue("login"))
        case "kubernetes":
            found = kubernetes_case(tmp_path, request.getfixturevalue("kubernetes_api"))
        case "ray":
            found = ray_case(tmp_path, request.getfixturevalue("ray_jobs"), request.getfixturevalue("transport"))
        case "ray_actors":
            found = ray_actors_case(tmp_path, *request.getfixturevalue("ray_cluster"))
        case _:
            found = local_case(tmp_path)
    yield found
    # The servers of Kubernetes and Ray are of this test alone and end all processes.
    if request.param not in ("kubernetes", "ray"):
        end_all(found)
    if request.param == "ray_actors":
        # Actors have their cores until they are removed.
        found.launcher.clean(found.pool, [Allocation(id=id, pool=found.pool.name) for id in found.look()])


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[tuple[str, str]]:
    if why := why_no_ray():
        pytest.skip(why)
    # A short path: Ray has sockets in it.
    with TemporaryDirectory(prefix="ray") as name, ray_without_dashboard(Path(name)) as cluster:
        yield cluster


@pytest.fixture
def transport() -> Iterator[Transport]:
    made = Urllib3Transport(HttpSettings())
    yield made
    made.close()


def end_all(found: LauncherCase) -> None:
    live = [one for one in found.look().values() if one.state is not ENDED]
    found.launcher.cancel(found.pool, [one.backend_id for one in live])
    for one in live:
        found.wait(one.id, ENDED)


def local_case(tmp_path: Path) -> LauncherCase:
    runner = SubprocessRunner(public_environment({**os.environ, "STOKER_TOKEN": SECRET}), language=None)
    python = str(make_stand_in(tmp_path / "stand-in", __version__))

    def launcher(kind: type[HostCommands]) -> HostLauncher:
        commands = kind(runner, control_folder=str(tmp_path / "control"))
        return HostLauncher(commands, folder=str(tmp_path / "workers"), python="/none")

    pool = Pool(name="small", backend=PoolBackend.LOCAL, python=python, wall_s=600, each=PoolShape(cpu_cores=1))
    return LauncherCase(
        launcher=launcher(HostCommands),
        pool=pool,
        folder=tmp_path / "stand-in",
        break_answer=lambda: launcher(LosingCommands),
        unreachable=changed(pool, via="host.invalid", folder="/none"),
    )


def ssh_case(tmp_path: Path, login: Login) -> LauncherCase:
    python = str(make_stand_in(tmp_path / "stand-in", __version__))

    def launcher(kind: type[HostCommands]) -> HostLauncher:
        return HostLauncher(login.commands(kind), folder="/none", python="/none")

    pool = Pool(
        name="small", backend=PoolBackend.SSH, via=login.host, folder=str(tmp_path / "far"), python=python, wall_s=600
    )
    return LauncherCase(
        launcher=launcher(HostCommands),
        pool=pool,
        folder=tmp_path / "stand-in",
        break_answer=lambda: launcher(LosingCommands),
        unreachable=changed(pool, via="host.invalid", folder="/none"),
    )


def slurm_case(tmp_path: Path, cluster: SlurmCluster) -> LauncherCase:
    python = str(make_stand_in(tmp_path / "stand-in", __version__))
    environment = {**os.environ, "STOKER_TOKEN": SECRET}

    def launcher(kind: type[HostCommands]) -> SlurmLauncher:
        commands = kind(cluster.runner(public_environment(environment)), control_folder=str(tmp_path / "control"))
        return SlurmLauncher(commands, folder=str(tmp_path / "run"), python="/none")

    pool = Pool(name="small", backend=PoolBackend.SLURM, python=python, wall_s=600, each=PoolShape(cpu_cores=1))
    return LauncherCase(
        launcher=launcher(HostCommands),
        pool=pool,
        folder=tmp_path / "stand-in",
        break_answer=lambda: launcher(LosingCommands),
        unreachable=changed(pool, via="host.invalid", folder="/none"),
        network=cluster.network,
    )


def kubernetes_case(tmp_path: Path, api: KubernetesApi) -> LauncherCase:
    python = str(make_stand_in(tmp_path / "stand-in", __version__))
    environment = {**os.environ, "KUBECONFIG": str(api.kubeconfig()), "HOME": str(tmp_path)}

    def launcher(kind: type[HostCommands]) -> KubernetesLauncher:
        return KubernetesLauncher(kind(SubprocessRunner(environment), control_folder=str(tmp_path / "control")))

    options = {"image": "registry.example.org/stoker:1"}
    pool = Pool(name="small", backend=PoolBackend.KUBERNETES, python=python, wall_s=600, options=options)
    return LauncherCase(
        launcher=launcher(HostCommands),
        pool=pool,
        folder=tmp_path / "stand-in",
        break_answer=lambda: launcher(LosingCommands),
        unreachable=changed(pool, via="host.invalid"),
        sees_far_side=False,
    )


def ray_case(tmp_path: Path, cluster: RayJobs, transport: Transport) -> LauncherCase:
    python = str(make_stand_in(tmp_path / "stand-in", __version__))
    launcher = RayLauncher(transport, lambda: RAY_TOKEN)

    def losing() -> RayLauncher:
        cluster.loses.add("POST /api/jobs/")
        return launcher

    pool = Pool(name="small", backend=PoolBackend.RAY, python=python, wall_s=600, options={"address": cluster.url})
    return LauncherCase(
        launcher=launcher,
        pool=pool,
        folder=tmp_path / "stand-in",
        break_answer=losing,
        unreachable=changed(pool, options={"address": "http://127.0.0.1:1"}),
        sees_far_side=False,
    )


def ray_actors_case(tmp_path: Path, token: str, python: str) -> LauncherCase:
    worker = str(make_stand_in(tmp_path / "stand-in", __version__))
    environment = public_environment(os.environ)

    def launcher(kind: type[HostCommands]) -> RayLauncher:
        commands = kind(SubprocessRunner(environment), control_folder=str(tmp_path / "control"))
        return RayLauncher(cast("Transport", None), lambda: token, RayActors(commands, lambda: token, python=python))

    options = {"address": f"127.0.0.1:{RAY_PORT}"}
    pool = Pool(name="small", backend=PoolBackend.RAY, python=worker, wall_s=600, options=options)
    return LauncherCase(
        launcher=launcher(HostCommands),
        pool=pool,
        folder=tmp_path / "stand-in",
        break_answer=lambda: launcher(LosingCommands),
        unreachable=changed(pool, options={"address": "127.0.0.1:1"}),
        sees_far_side=False,
    )


def test_rendering_is_pure_and_shows_no_ticket(case: LauncherCase) -> None:
    one = case.ids()
    rendered = case.launcher.render(case.pool, one, fleet=case.fleet)
    assert rendered == case.launcher.render(case.pool, one, fleet=case.fleet)
    assert rendered.ids == (one[0].id,)
    assert case.look() == {}
    holes = rendered.stdin.count("{ticket:") + sum(text.count("{ticket:") for text in rendered.files.values())
    assert holes == 1


def test_a_pool_that_names_its_python_needs_no_preparation(case: LauncherCase) -> None:
    for is_dry in (True, False):
        ready = case.launcher.prepare(case.pool, lambda kind, _fields: pytest.fail(kind), is_dry=is_dry)
        assert ready == case.pool


def test_a_submitted_allocation_is_found_by_its_label_and_runs_the_worker(case: LauncherCase) -> None:
    one = case.ids()
    made = case.submit(one)
    assert list(made) == [one[0].id]
    seen = case.wait(one[0].id, STARTED)
    assert seen.backend_id == made[one[0].id]
    if not case.pool.options.get("address", "").startswith("http"):
        assert seen.ends_s is not None
        assert 500 < seen.ends_s - time.time() < 700
    arguments = _arguments(case)
    assert arguments[:4] == ["-m", "stoker", "work", "--ticket"]
    assert arguments[5:8] == ["--idle", "300s", "--for"]
    assert arguments[8] in ("600s", "599s", "598s"), "Slurm's clock has run for a moment"
    assert arguments[9:11] == ["--drain", "120s"]
    (ticket,) = case.folder.glob("ticket.*")
    assert ticket.read_text() == tickets(one)[one[0].id]
    assert case.look(fleet="000000") == {}, "another fleet's"


def test_a_ticket_is_in_no_argument_and_no_environment(case: LauncherCase) -> None:
    one = case.ids()
    case.submit(one)
    case.wait(one[0].id, STARTED)
    assert SECRET not in "".join(_arguments(case))
    (environment,) = case.folder.glob("environment.*")
    assert SECRET not in environment.read_text()
    arguments = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        # Others end meanwhile.
        with suppress(OSError):
            arguments += path.read_bytes()
    assert arguments
    assert SECRET.encode() not in arguments


def test_several_are_one_request_and_each_has_its_own_id(case: LauncherCase) -> None:
    several = case.ids(2)
    made = case.submit(several)
    assert set(made) == {one.id for one in several}
    assert len(set(made.values())) == 2
    seen = case.look()
    assert {id: one.backend_id for id, one in seen.items()} == made
    case.launcher.cancel(case.pool, [made[several[0].id]])
    case.wait(several[0].id, ENDED)
    assert case.look()[several[1].id].state is not ENDED


def test_one_that_waits_is_cancelled_alone(tmp_path: Path, slurm_cluster: SlurmCluster) -> None:
    case = slurm_case(tmp_path, slurm_cluster)
    # Its time limit is above that of the partition: it waits for good.
    case = changed(case, pool=changed(case.pool, options={"partition": "short"}))
    first, second = case.ids(2)
    made = case.submit([first, second])
    case.launcher.cancel(case.pool, [made[first.id]], is_gentle=True)
    assert case.wait(first.id, ENDED).state is ENDED
    assert case.look()[second.id].state is AllocationState.WAITING
    end_all(case)


def test_a_cancelled_allocation_is_over_and_cancelling_again_is_no_error(case: LauncherCase) -> None:
    one = case.ids()
    made = case.submit(one)
    case.wait(one[0].id, STARTED)
    case.launcher.cancel(case.pool, list(made.values()))
    ended = case.wait(one[0].id, ENDED)
    assert ended.cause is AllocationCause.CANCELLED_THERE
    for is_gentle in (False, True):
        case.launcher.cancel(case.pool, list(made.values()), is_gentle=is_gentle)


def test_a_gentle_cancel_asks_the_worker_to_end(case: LauncherCase) -> None:
    one = case.ids()
    made = case.submit(one)
    case.wait(one[0].id, STARTED)
    _arguments(case)
    case.launcher.cancel(case.pool, list(made.values()), is_gentle=True)
    assert case.wait(one[0].id, ENDED).cause in FREE_CAUSES


def test_a_lost_answer_is_doubtful_and_a_look_finds_the_allocation(case: LauncherCase) -> None:
    one = case.ids()
    rendered = case.launcher.render(case.pool, one, fleet=case.fleet)
    with pytest.raises(LaunchDoubtful):
        case.break_answer().submit(rendered, tickets(one))
    assert one[0].id in case.look()


def test_an_id_that_the_backend_does_not_know_is_over(case: LauncherCase) -> None:
    one = Allocation(id="abcdef", pool=case.pool.name, backend_id="999999")
    (lost,) = case.launcher.look(case.pool, fleet=case.fleet, known=[one])
    assert (lost.id, lost.backend_id, lost.state) == ("abcdef", "999999", ENDED)


def test_a_worker_that_exits_ends_its_allocation_with_the_cause(case: LauncherCase) -> None:
    (case.folder / "exit").write_text("0")
    finished = case.ids()
    case.submit(finished)
    assert case.wait(finished[0].id, ENDED).cause is AllocationCause.FINISHED
    (case.folder / "exit").write_text("75")
    drained = case.ids()
    case.submit(drained)
    assert case.wait(drained[0].id, ENDED).cause is AllocationCause.FINISHED
    (case.folder / "exit").write_text("3")
    failed = case.ids()
    case.submit(failed)
    assert case.wait(failed[0].id, ENDED).cause is AllocationCause.FAILED


def test_the_log_is_there_until_it_is_cleaned_up_and_then_nothing_is(case: LauncherCase) -> None:
    (case.folder / "exit").write_text("0")
    one = case.ids()
    made = case.submit(one)
    case.wait(one[0].id, ENDED)
    over = changed(one[0], backend_id=made[one[0].id])
    assert "the worker started" in case.launcher.log(case.pool, over)
    case.launcher.clean(case.pool, [over])
    assert case.launcher.log(case.pool, over) == ""
    left = [path for path in case.folder.parent.rglob("*") if path.is_file() and one[0].id in str(path)]
    assert left == []


def test_a_pools_setup_runs_first_and_a_failing_command_is_in_the_log(case: LauncherCase) -> None:
    pool = changed(case.pool, setup=(f"echo set up > {case.folder}/setup", "echo \"a  b\" '$c'"))
    one = case.ids()
    rendered = case.launcher.render(pool, one, fleet=case.fleet)
    made = case.launcher.submit(rendered, tickets(one))
    case.wait(one[0].id, STARTED)
    _arguments(case)
    assert (case.folder / "setup").read_text() == "set up\n"
    assert "a  b $c" in case.launcher.log(pool, changed(one[0], backend_id=made[one[0].id]))


class AtHome(HostCommands):
    """Runs the commands of a login host here, as SSH does: in the user's home."""

    def run(self, where: str, argv: object, **options: object) -> Reply:
        words = ("sh", "-c", 'cd "$HOME" && exec "$@"', "sh", *cast("Sequence[str]", argv))
        return super().run("", words, **options)  # type: ignore[arg-type]


def test_a_pool_of_a_login_host_needs_no_folder(tmp_path: Path, slurm_cluster: SlurmCluster) -> None:
    python = str(make_stand_in(tmp_path / "stand-in", __version__))
    environment = public_environment({**os.environ, "HOME": str(tmp_path)})
    commands = AtHome(slurm_cluster.runner(environment), control_folder=str(tmp_path / "control"))
    pool = Pool(name="small", backend=PoolBackend.SLURM, via="login", python=python, wall_s=600)
    launcher = SlurmLauncher(commands, folder="/none", python="/none")
    (tmp_path / "stand-in/exit").write_text("0")
    case = LauncherCase(
        launcher=launcher,
        pool=pool,
        folder=tmp_path / "stand-in",
        break_answer=lambda: launcher,
        unreachable=pool,
    )
    several = case.ids(2)
    made = case.submit(several)
    for one in several:
        assert case.wait(one.id, ENDED).cause is AllocationCause.FINISHED
        assert "the worker started" in launcher.log(pool, changed(one, backend_id=made[one.id]))
    read = {path.read_text() for path in case.folder.glob("ticket.*")}
    assert read == set(tickets(several).values())
    checks = launcher.check(pool)
    assert [one for one in checks if one.verdict is CheckStatus.BAD] == []
    launcher.clean(pool, [changed(one, backend_id=made[one.id]) for one in several])
    assert [path for path in (tmp_path / ".local").rglob("*") if path.is_file()] == []


def test_what_would_break_out_of_a_script_is_not_rendered(case: LauncherCase) -> None:
    for bad in (changed(case.pool, name="x;id"), changed(case.pool, setup=("a\nb",))):
        with pytest.raises(InvalidCluster):
            case.launcher.render(bad, case.ids(), fleet=case.fleet)


def test_check_reports_what_works_and_starts_nothing(case: LauncherCase) -> None:
    checks = case.launcher.check(case.pool)
    assert [one for one in checks if one.verdict is CheckStatus.BAD] == []
    assert {"reached", "python"} <= {one.name for one in checks}
    assert case.look() == {}
    if not case.sees_far_side:
        return
    (case.folder / "version").write_text("0.0.1")
    checks = case.launcher.check(case.pool)
    assert [one.name for one in checks if one.verdict is CheckStatus.BAD] == ["python"]


def test_check_tells_whether_the_host_reaches_the_coordinator(case: LauncherCase) -> None:
    with case.network():
        server = socket.create_server(("127.0.0.1", 0))
    with server:
        url = f"https://127.0.0.1:{server.getsockname()[1]}"
        if not case.sees_far_side:
            (python,) = (one for one in case.launcher.check(case.pool, url=url) if one.name == "python")
            assert python.message.endswith(f"nor its way to {url}")
            return
        (reached,) = (one for one in case.launcher.check(case.pool, url=url) if one.name == "coordinator")
        assert (reached.verdict, f"reaches {url}" in reached.message) == (CheckStatus.OK, True)
    (bad,) = (one for one in case.launcher.check(case.pool, url=url) if one.verdict is CheckStatus.BAD)
    assert bad.name == "coordinator"
    assert "refused" in bad.message
    assert "--relay" in bad.hint


def test_check_asks_for_versions_after_the_pools_setup_commands(case: LauncherCase) -> None:
    if not case.sees_far_side:
        pytest.skip("nothing runs on the far side before a worker")
    (case.folder / "version").write_text("0.0.1")
    setup = f"printf %s {__version__} > {case.folder}/version; echo noise"
    checks = case.launcher.check(changed(case.pool, setup=(setup,)))
    assert [one for one in checks if one.verdict is CheckStatus.BAD] == []
    (bad,) = (
        one for one in case.launcher.check(changed(case.pool, setup=("exit 3",))) if one.verdict is CheckStatus.BAD
    )
    assert (bad.name, "the setup commands ended the shell with exit code 3" in bad.message) == ("python", True)


def test_a_missing_backend_is_an_error_with_its_own_class(case: LauncherCase) -> None:
    with pytest.raises(StokerError):
        case.launcher.look(case.unreachable, fleet=case.fleet)


def _arguments(case: LauncherCase) -> list[str]:
    """Return the stand-in's arguments once it has started."""
    deadline_s = time.monotonic() + 60
    while not (case.folder / "arguments").exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return (case.folder / "arguments").read_text().splitlines()
