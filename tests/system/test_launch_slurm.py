"""Workers on a real Slurm: they start when jobs wait, run them, and leave; what Slurm ends costs a job nothing."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from stoker.core.clock import SystemClock
from stoker.core.frozen import changed
from stoker.core.pool import Allocation, AllocationCause
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import FleetIdentity, read_http_settings
from stoker.protocol.client import FleetClient
from stoker.protocol.view_messages import JobDetails
from tests.servers.slurm import SlurmCluster
from tests.system.secret_search import ProcessSamples, files_with
from tests.system.warm import stoker_argv

DATABASE = ("queue.db", "queue.db-wal", "queue.db-shm")
"""Its rows are searched. Free pages may still have the key of a ticket, which opens nothing once it was used."""
T = TypeVar("T")
CLOCK = SystemClock()
POOL = """\
pools:
  - name: small
    backend: slurm
    each: {{ cpu_cores: 1 }}
    folder: {folder}
    python: {python}
    wall: 10m
    max: 4
    backlog: 4
    idle: 2s
"""
# Saves a checkpoint each step, and continues from it.
COUNTER = """\
import os, time
import stoker_trainer as t
at = t.resume()
first = int(open(at).read()) + 1 if at else 0
for step in range(first, 50):
    time.sleep(0.1)
    t.step(step, loss=1.0 / (step + 1), of=50)
    with open("ckpt.txt.new", "w") as file:
        file.write(str(step))
    os.replace("ckpt.txt.new", "ckpt.txt")
    t.saved("ckpt.txt")
"""


class Site:
    """A coordinator and a watcher inside a cluster's namespaces."""

    def __init__(self, cluster: SlurmCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.project = folder / "project"
        """Where commands run: a folder in which nothing changes while it is packed."""
        self.project.mkdir()
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.environment = {
            **cluster.environment,
            "HOME": str(folder),
            "STOKER_HOME": str(folder / "home"),
            # Coordinators of other network namespaces have the same port, and would have the same socket.
            "STOKER_RUNTIME": str(folder / "run"),
            "TMPDIR": str(folder / "node"),
        }
        (folder / "node").mkdir()
        (folder / "cluster.yaml").write_text(POOL.format(folder=self.shared, python=sys.executable))
        self._processes: list[subprocess.Popen[bytes]] = []

    def _inside(self, words: tuple[str, ...]) -> list[str]:
        # Entering the namespace of mounts changes the folder.
        enter = ["sh", "-c", 'cd "$0" && exec "$@"', str(self.project)]
        return self.cluster.inside([*enter, *stoker_argv(self.environment), *words])

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        log = open(self.folder / f"{words[0]}.log", "ab")  # noqa: SIM115 - the child's
        process = subprocess.Popen(
            self._inside(words),
            env=self.environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        log.close()
        self._processes.append(process)
        return process

    def run(self, *words: str, check: bool = True) -> str:
        done = subprocess.run(
            self._inside(words),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stdout + done.stderr + self.logs()
        return done.stdout

    def allocations(self) -> tuple[Allocation, ...]:
        return self.ask(lambda client: client.launch_view().allocations)

    def details(self, name: str) -> JobDetails:
        return self.ask(lambda client: client.job(name))

    def ask(self, act: Callable[[FleetClient], T]) -> T:
        """Ask the coordinator, from inside."""
        state = self.folder / "home" / "state"
        settings = read_http_settings({"no_proxy": "*"}, user_agent="test")
        identity = FleetIdentity(ca_pem=(state / "authority" / "ca.pem").read_text())
        with self.cluster.network(), closing(Urllib3Transport(changed(settings, fleet=identity))) as transport:
            token = (state / "operator.token").read_text().strip()
            return act(FleetClient(transport, "https://127.0.0.1:7717", clock=CLOCK, token=token))

    def logs(self) -> str:
        texts = [path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log")]
        return "\n---\n".join([*texts, *(path.read_text()[-2000:] for path in self.shared.glob("*/*.log"))])

    def until(self, is_so: Callable[[], bool], otherwise: str, within_s: float = 60.0) -> None:
        deadline_s = CLOCK.monotonic_s() + within_s
        while not is_so():
            assert CLOCK.monotonic_s() < deadline_s, f"{otherwise}\n{self.logs()}"
            CLOCK.sleep(0.2)

    def close(self) -> None:
        for process in reversed(self._processes):
            # `nsenter` passes no signal on.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def site(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[Site]:
    made = Site(slurm_cluster, tmp_path)
    try:
        made.start(
            "serve", "--listen", "0.0.0.0:7717", "--cluster", "../cluster.yaml", "--heartbeat", "1s", "--lease", "20s"
        )
        made.until(lambda: "operator's token" in (tmp_path / "serve.log").read_text(), "no coordinator")
        yield made
    finally:
        made.close()


def test_workers_come_when_jobs_wait_what_slurm_ends_costs_a_job_nothing_and_no_secret_is_seen(site: Site) -> None:
    site.run("submit", "--yes", "--name", "quick", "n=1,2", "--", "python3", "-c", "print('loss={n}')")
    assert "nobody watches it" in site.run("explain", "quick/1")
    dry = site.run("launch", "small", "--dry-run")
    assert "small: 2 allocations for quick/1 and 1 more" in dry
    assert "#SBATCH --array=0-1" in dry
    assert site.cluster.run("squeue", "--noheader") == ""

    with ProcessSamples(site.cluster.pid, tickets=site.shared) as samples:
        site.start("launch", "watch")
        site.until(lambda: all(site.details(f"quick/{one}").job.state == "completed" for one in (1, 2)), "jobs wait")
        _train_through_a_cancellation(site, samples)
    _check_nothing_is_left(site)
    _check_no_secret_was_seen(site, samples)


def _train_through_a_cancellation(site: Site, samples: ProcessSamples) -> None:
    (site.project / "train.py").write_text(COUNTER)
    site.run("submit", "--yes", "--name", "long", "--", sys.executable, "train.py")
    site.until(lambda: _step(site.details("long")) >= 3, "it does not train")
    # Slurm keeps the script and the variables of a job as long as that runs.
    assert files_with([" --ticket "], [site.cluster.folder])
    assert files_with(samples.keys, [site.folder, site.cluster.folder], but={*DATABASE, ".ticket"}) == []
    site.cluster.run("scancel", "--full", "--user=root")
    site.until(lambda: site.details("long").job.state == "completed", "it does not go on")
    details = site.details("long")
    assert len(details.attempts) >= 2
    assert not any(details.counts.values()), "the job was charged"


def _check_nothing_is_left(site: Site) -> None:
    site.until(lambda: all(one.is_over for one in site.allocations()), "workers stay")
    allocations = site.allocations()
    assert sum(one.grants for one in allocations) >= 4
    site.until(lambda: AllocationCause.CANCELLED_THERE in _causes(site), "nobody learns of the cancellation")
    assert set(_causes(site)) == {AllocationCause.FINISHED, AllocationCause.CANCELLED_THERE}
    site.until(lambda: site.cluster.run("squeue", "--noheader") == "", "Slurm still has jobs")
    site.until(
        lambda: not any(folders or files for _, folders, files in os.walk(site.shared)),
        "files are left in the shared folder",
    )
    assert list((site.folder / "node").iterdir()) == [], "homes of workers are left"
    assert site.ask(lambda client: client.machines()) == ()


def _check_no_secret_was_seen(site: Site, samples: ProcessSamples) -> None:
    """Check that neither a ticket nor a key was in words, variables, scripts, logs, events or other files."""
    assert samples.showing([" --ticket ".replace(" ", "\0")]), "no worker was sampled"
    assert samples.showing(["STOKER_JOB_NAME=long"]), "no program was sampled"
    planned = [one for one in site.allocations() if one.submitted_s is not None]
    assert len(samples.keys) >= len(planned) > 1, "not all tickets were seen"
    state = site.folder / "home" / "state"
    token = (state / "operator.token").read_text().strip()
    ca_key = (state / "authority" / "ca.key").read_text().splitlines()[1]
    secrets = {*samples.keys, token, ca_key}
    assert samples.showing(secrets) == []
    folders = [site.folder, site.cluster.folder]
    assert files_with(secrets, folders, but={*DATABASE, "operator.token", "ca.key"}) == []
    with closing(sqlite3.connect(site.folder / "home" / "fleet" / "queue.db")) as connection:
        rows = "\n".join(connection.iterdump())
    assert "allocation" in rows
    assert [secret for secret in secrets if secret in rows] == []


@pytest.mark.slow
def test_jobs_longer_than_their_allocations_complete_over_several_and_slurm_ends_none(site: Site) -> None:
    steps, step_s, jobs = 600, 0.5, 2
    pool = POOL.format(folder=site.shared, python=sys.executable)
    pool = pool.replace("wall: 10m", "wall: 2m\n    drain: 15s").replace("max: 4", f"max: {jobs}")
    (site.folder / "cluster.yaml").write_text(pool)
    site.run("admin", "reload")
    trained = site.folder / "trained"
    trained.mkdir()
    trainer = COUNTER.replace("50", str(steps)).replace("sleep(0.1)", f"sleep({step_s})")
    trainer += f"    print(step, file=open('{trained}/' + os.environ['WHICH'], 'a'))\n"
    (site.project / "train.py").write_text(trainer)
    for number in range(jobs):
        environment = ("env", f"WHICH={number}")
        site.run("submit", "--yes", "--name", f"long{number}", "--", *environment, sys.executable, "train.py")
    site.start("launch", "watch")
    names = [f"long{number}" for number in range(jobs)]
    site.until(
        lambda: all(site.details(name).job.state == "completed" for name in names), "they do not complete", 1400.0
    )
    for number, name in enumerate(names):
        details = site.details(name)
        assert len(details.attempts) >= 3
        assert not any(details.counts.values()), "the job was charged"
        done = [int(line) for line in (trained / str(number)).read_text().split()]
        times = [done.count(step) for step in range(steps)]
        assert min(times) == 1
        assert max(times) <= 2, "a step was repeated twice"
    site.until(lambda: all(one.is_over for one in site.allocations()), "workers stay")
    allocations = site.allocations()
    assert {one.cause for one in allocations} == {AllocationCause.FINISHED}, "Slurm ended one"
    serving_s = sum((one.ended_s or 0.0) - (one.serving_s or 0.0) for one in allocations)
    part = jobs * steps * step_s / serving_s
    print(f"{len(allocations)} allocations, {serving_s:.0f} s serving, {part:.0%} of it trains")
    assert part >= 0.8


def _causes(site: Site) -> list[AllocationCause | None]:
    return [one.cause for one in site.allocations()]


def _step(details: JobDetails) -> int:
    return details.job.step or 0
