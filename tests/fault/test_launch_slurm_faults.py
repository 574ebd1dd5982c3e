"""A real Slurm that freezes, dies, preempts, refuses, or accepts what it will never start."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.core.errors import LaunchDoubtful, LaunchRefused, NoBackend
from stoker.core.frozen import changed, frozen
from stoker.core.pool import Allocation, AllocationCause, AllocationState, Pool, PoolBackend, PoolGpu, PoolShape
from stoker.devices.checkup import CheckStatus
from stoker.launch.commands import HostCommands, public_environment
from stoker.launch.launchers import AllocationStatus
from stoker.launch.slurm import SlurmLauncher
from tests.servers.slurm import SlurmCluster

FLEET = "4c1d"
# It writes down which signals come and what it sees of devices.
WORKER = """\
#!/bin/bash
cd {folder}
[ "$1" = -c ] && {{ echo 3.11.0 0.0.0; exit; }}
trap 'date +%s.%N > term' TERM
env > environment
touch started
while :; do sleep 0.1; done
"""


@frozen
class Placed:
    cluster: SlurmCluster
    launcher: SlurmLauncher
    pool: Pool
    folder: Path

    def submit(self, pool: Pool | None = None, count: int = 1) -> list[Allocation]:
        allocations = [Allocation(id=os.urandom(3).hex(), pool=self.pool.name) for _ in range(count)]
        rendered = self.launcher.render(pool or self.pool, allocations, fleet=FLEET)
        made = self.launcher.submit(rendered, {one.id: "ticket\n" for one in allocations})
        return [changed(one, backend_id=made[one.id]) for one in allocations]

    def look(self, allocation: Allocation) -> AllocationStatus | None:
        found = self.launcher.look(self.pool, fleet=FLEET)
        return next((one for one in found if one.id == allocation.id), None)

    def wait(self, allocation: Allocation, state: AllocationState) -> AllocationStatus:
        deadline_s = time.monotonic() + 60
        while (seen := self.look(allocation)) is None or seen.state is not state:
            assert time.monotonic() < deadline_s, seen
            time.sleep(0.1)
        return seen

    def wait_for_file(self, name: str) -> str:
        deadline_s = time.monotonic() + 60
        while not (self.folder / name).exists():
            assert time.monotonic() < deadline_s, name
            time.sleep(0.05)
        return (self.folder / name).read_text()


@pytest.fixture
def placed(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[Placed]:
    python = tmp_path / "python"
    python.write_text(WORKER.format(folder=tmp_path))
    python.chmod(0o755)
    commands = HostCommands(slurm_cluster.runner(public_environment(os.environ)), control_folder=str(tmp_path / "c"))
    pool = Pool(name="p", backend=PoolBackend.SLURM, python=str(python), folder=str(tmp_path / "run"), wall_s=600)
    launcher = SlurmLauncher(commands, folder="/none", python="/none")
    yield Placed(cluster=slurm_cluster, launcher=launcher, pool=pool, folder=tmp_path)
    slurm_cluster.clear()


@pytest.mark.slow
def test_a_frozen_controller_loses_the_answer_and_the_job_is_found_by_its_label(placed: Placed) -> None:
    one = Allocation(id="7f3a2c", pool="p")
    rendered = placed.launcher.render(placed.pool, [one], fleet=FLEET)
    placed.cluster.freeze("slurmctld")
    try:
        with pytest.raises(LaunchDoubtful, match="timed out"):
            placed.launcher.submit(rendered, {one.id: "ticket\n"})
    finally:
        placed.cluster.thaw("slurmctld")
    assert placed.wait(one, AllocationState.STARTED).backend_id


@pytest.mark.slow
def test_a_dead_controller_is_no_backend_and_knows_its_jobs_after_its_start(placed: Placed) -> None:
    (one,) = placed.submit()
    placed.wait(one, AllocationState.STARTED)
    # What it has not written yet would be forgotten.
    time.sleep(6)
    placed.cluster.kill("slurmctld")
    with pytest.raises(NoBackend):
        placed.launcher.look(placed.pool, fleet=FLEET, known=[one])
    placed.cluster.start("slurmctld")
    deadline_s = time.monotonic() + 60
    while True:
        try:
            assert placed.wait(one, AllocationState.STARTED).backend_id == one.backend_id
            return
        except NoBackend:
            assert time.monotonic() < deadline_s


@pytest.mark.slow
def test_a_preempted_worker_hears_of_it_at_once_and_its_end_is_no_fault_of_a_job(placed: Placed) -> None:
    whole = changed(placed.pool, each=PoolShape(cpu_cores=2))
    for one in (first := placed.submit(whole, count=2)):
        placed.wait(one, AllocationState.STARTED)
    placed.wait_for_file("started")
    begun_s = time.time()
    placed.cluster.run("sbatch", "--partition=high", "--nodes=2", "--exclusive", stdin="#!/bin/bash\nsleep 60\n")
    assert float(placed.wait_for_file("term")) - begun_s < 30
    causes = {placed.wait(one, AllocationState.ENDED).cause for one in first}
    assert causes == {AllocationCause.PREEMPTED}


def test_a_step_sees_the_devices_that_it_requested_and_none_of_our_secrets(placed: Placed) -> None:
    gpus = (PoolGpu(type="fake", vram_mb=1024),) * 2
    placed.submit(changed(placed.pool, each=PoolShape(cpu_cores=1, gpus=gpus)))
    placed.wait_for_file("started")
    seen = dict(line.partition("=")[::2] for line in (placed.folder / "environment").read_text().splitlines())
    assert len(seen["CUDA_VISIBLE_DEVICES"].split(",")) == 2
    assert seen["SLURM_CPUS_ON_NODE"] == "1"
    assert not [name for name in seen if name.startswith("STOKER")]


def test_what_slurm_refuses_is_refused_with_its_text_and_a_hint(placed: Placed) -> None:
    many = PoolShape(gpus=(PoolGpu(type="fake", vram_mb=1),) * 9)
    with pytest.raises(LaunchRefused, match="node configuration is not available") as raised:
        placed.submit(changed(placed.pool, each=many))
    assert raised.value.exit_code == 60
    assert "sinfo" in raised.value.hint
    with pytest.raises(LaunchRefused, match="partition"):
        placed.submit(changed(placed.pool, options={"partition": "none"}))


def test_what_slurm_accepts_and_never_starts_waits_with_its_reason_and_is_found_by_check(placed: Placed) -> None:
    short = changed(placed.pool, options={"partition": "short"})
    (one,) = placed.submit(short)
    deadline_s = time.monotonic() + 60
    while (seen := placed.look(one)) is None or seen.reason != "PartitionTimeLimit":
        assert time.monotonic() < deadline_s, seen
        time.sleep(0.1)
    assert seen.state is AllocationState.WAITING
    bad = [check for check in placed.launcher.check(short) if check.name == "limits"]
    assert bad[0].verdict is CheckStatus.BAD
    assert "short 1:00" in bad[0].message


def test_the_forecast_is_slurms_own_and_submits_nothing(placed: Placed) -> None:
    rendered = placed.launcher.render(placed.pool, [Allocation(id="7f3a2d", pool="p")], fleet=FLEET)
    assert "to start at" in placed.launcher.forecast(rendered)
    assert placed.look(Allocation(id="7f3a2d", pool="p")) is None


def test_slurm_shows_nobody_a_ticket(placed: Placed) -> None:
    one = Allocation(id="7f3a2e", pool="p")
    secret = "5ec7e7" * 10
    made = placed.launcher.submit(placed.launcher.render(placed.pool, [one], fleet=FLEET), {one.id: secret})
    placed.wait_for_file("started")
    shown = placed.cluster.run("scontrol", "show", "job", "--details", made[one.id])
    shown += placed.cluster.run("scontrol", "write", "batch_script", made[one.id], "-")
    assert "7f3a2e.ticket" in shown
    assert secret not in shown
    assert secret not in (placed.folder / "environment").read_text()
    (ticket,) = (placed.folder / "run" / FLEET).glob("*.ticket")
    assert ticket.stat().st_mode & 0o777 == 0o600


def test_a_server_inside_is_reached_from_inside_only(placed: Placed) -> None:
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); s.accept()"
    )
    words = placed.cluster.inside([sys.executable, "-c", program])
    with subprocess.Popen(words, env=placed.cluster.environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5).close()
        with placed.cluster.network():
            socket.create_connection(("127.0.0.1", port), 5).close()
        assert server.wait(20) == 0
