"""Jobs with checkpoints on a real Slurm while everything is killed that can be: none is lost, none is recorded twice.

Random scancel, preemption, lost answers of sbatch, lost nodes, and kill -9 of workers, slurmd, slurmctld, watcher and
coordinator. Slow: `make soak` runs it with 200 jobs. `STOKER_CHAOS_JOBS` and `STOKER_CHAOS_SEED` choose others.
"""

from __future__ import annotations

import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from stoker.core.errors import StokerError
from stoker.core.pool import Allocation, AllocationState
from stoker.protocol.view_messages import JobDetails
from tests.servers.slurm import SlurmCluster, slurm, why_no_slurm
from tests.system.test_launch_slurm import Site

JOBS = int(os.environ.get("STOKER_CHAOS_JOBS", "200"))
SEED = int(os.environ.get("STOKER_CHAOS_SEED", "1"))
NODES = 4
PAUSE_S = (3.0, 15.0)
"""Between two faults."""
STEPS, SAVED_EVERY = 18, 6
SENT_WITHIN_S = 1.5
"""A worker looks for a new checkpoint twice a second, then sends it; the machine is busy. Training does not wait for
that, so one that was not sent when the worker was killed is gone with it: the steps since the one before are repeated.
"""
GONE_WITHIN_S = 3.0
"""The program of a killed worker looks twice a second whether that is alive. The machine is busy."""
DEADLINE_S = 2400.0
POOL = """\
pools:
  - name: small
    backend: slurm
    each: {{ cpu_cores: 1 }}
    folder: {folder}
    python: {python}
    wall: 30m
    max: {most}
    backlog: {backlog}
    patience: 1s
    idle: 5s
"""
# It writes down every step that it makes, and saves each few of them.
TRAINER = """\
import os, sys, time
import stoker_trainer as t
at = t.resume()
first = int(open(at).read()) + 1 if at else 0
steps = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for step in range(first, {steps}):
    time.sleep(0.5)
    os.write(steps, f"{{os.getpid()}} {{step}} {{time.time():.2f}}\\n".encode())
    t.step(step, loss=1.0 / (step + 1), of={steps})
    if step % {every} == {every} - 1:
        with open("ckpt.txt.new", "w") as file:
            file.write(str(step))
        os.replace("ckpt.txt.new", "ckpt.txt")
        t.saved("ckpt.txt")
"""
# Submits, and says that it does not know, while there is such an order.
SBATCH = """\
#!/bin/sh
if mv "{order}" "{order}.done" 2>/dev/null; then
    {sbatch} "$@" > /dev/null
    echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
    exit 1
fi
exec {sbatch} "$@"
"""
SERVE = (
    "serve", "--listen", "0.0.0.0:7717", "--cluster", "../cluster.yaml", "--heartbeat", "1s", "--lease", "20s",
)  # fmt: skip


class Chaos(Site):
    """A fleet on Slurm, and what breaks it."""

    def __init__(self, cluster: SlurmCluster, folder: Path, *, backlog: int, steps: int = STEPS) -> None:
        super().__init__(cluster, folder)
        text = POOL.format(folder=self.shared, python=sys.executable, most=2 * NODES, backlog=backlog)
        (folder / "cluster.yaml").write_text(text)
        (folder / "steps").mkdir()
        # Apart: code is sent as a folder, and the logs here change.
        (folder / "code").mkdir()
        (folder / "code" / "train.py").write_text(TRAINER.format(steps=steps, every=SAVED_EVERY))
        self.order = folder / "lose_an_answer"
        self._replace_sbatch()
        self.random = random.Random(SEED)
        self.faults: Counter[str] = Counter()
        self.pauses: list[str] = []
        self.hit: dict[str, float] = {}
        """Jobs whose worker was killed, and when: a second time would be poison, and rightly so."""
        self.unsent = 0
        """Checkpoints that were lost because their worker ended a moment after they were saved."""
        self._later: list[threading.Timer] = []

    def begin(self) -> None:
        self.serve = self.start(*SERVE)
        self.until(lambda: "operator's token" in (self.folder / "serve.log").read_text(), "no coordinator")
        self.watch = self.start("launch", "watch")

    def submit(self, count: int) -> None:
        numbers = ",".join(str(number) for number in range(1, count + 1))
        program = [sys.executable, "train.py", f"{self.folder}/steps/{{n}}"]
        self._submit("chaos", f"n={numbers}", "--", *program)

    def _submit(self, name: str, *words: str) -> None:
        enter = ["sh", "-c", 'cd "$0" && exec "$@"', str(self.folder / "code")]
        command = [sys.executable, "-m", "stoker", "submit", "--yes", "--name", name, *words]
        subprocess.run(self.cluster.inside([*enter, *command]), env=self.environment, check=True)

    def states(self) -> Counter[str]:
        """Return how many jobs are in which state; nothing while no coordinator answers."""
        with suppress(StokerError, OSError):
            return Counter(self.ask(lambda client: client.status()).jobs)
        return Counter()

    # Faults.

    def disturb(self, until: Callable[[], bool]) -> None:
        """Break something now and then until all is over."""
        acts = {
            self.scancel: 4, self.preempt: 2, self.kill_worker: 2, self.kill_slurmd: 1, self.kill_slurmctld: 1,
            self.kill_watcher: 1, self.kill_coordinator: 1, self.lose_answer: 3, self.lose_node: 1,
        }  # fmt: skip
        deadline_s = time.monotonic() + DEADLINE_S
        while not until():
            assert time.monotonic() < deadline_s, f"{self.states()} {dict(self.faults)}\n{self.logs()}"
            (act,) = self.random.choices(list(acts), list(acts.values()))
            if act():
                self.faults[act.__name__] += 1
            self.resume_if_paused()
            time.sleep(self.random.uniform(*PAUSE_S))

    def scancel(self) -> bool:
        found = self.cluster.run("squeue", "--noheader", "--partition=main", "--format=%i", check=False).split()
        if not found or not found[0][0].isdigit():
            return False
        self.cluster.run("scancel", self.random.choice(found), check=False)
        return True

    def preempt(self) -> bool:
        script = "#!/bin/bash\nsleep 4\n"
        self.cluster.run("sbatch", "--partition=high", "--nodes=1", "--exclusive", stdin=script, check=False)
        return True

    def kill_worker(self) -> bool:
        jobs = self.running()
        workers = [
            (pid, job)
            for pid, words in self.processes()
            if "--ticket" in words and Path(words[0]).name.startswith("python")
            if (job := jobs.get(f"small-{Path(words[words.index('--ticket') + 1]).stem}")) and job not in self.hit
        ]
        if not workers:
            return False
        pid, job = self.random.choice(workers)
        self.hit[job] = time.time()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return True

    def running(self) -> dict[str, str]:
        """Return the jobs that run, by machine."""
        with suppress(StokerError, OSError):
            return {one.machine: one.name for one in self.ask(lambda client: client.jobs(state="running")).jobs}
        return {}

    def kill_slurmd(self) -> bool:
        return self._kill_daemon(f"slurmd_n{self.random.randrange(NODES)}", self.random.uniform(1.0, 12.0))

    def kill_slurmctld(self) -> bool:
        return self._kill_daemon("slurmctld", self.random.uniform(0.5, 5.0))

    def lose_node(self) -> bool:
        """Kill everything on a node, and bring it back when Slurm has noticed."""
        node = f"n{self.random.randrange(NODES)}"
        if not self._kill_daemon(f"slurmd_{node}", 12.0):
            return False
        on_node = [pid for pid, _ in self.processes() if f"SLURMD_NODENAME={node}".encode() in environment_of(pid)]
        for pid in {parent_of(pid) for pid in on_node}:
            if command_of(pid) == "slurmstepd":
                os.kill(pid, signal.SIGKILL)
        for pid in on_node:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return True

    def kill_watcher(self) -> bool:
        kill_group(self.watch)
        self.watch = self.start("launch", "watch")
        return True

    def kill_coordinator(self) -> bool:
        kill_group(self.serve)
        self.serve = self.start(*SERVE)
        return True

    def lose_answer(self) -> bool:
        self.order.touch()
        return True

    def resume_if_paused(self) -> None:
        with suppress(StokerError, OSError):
            (state,) = self.ask(lambda client: client.launch_view()).pools
            if state.paused:
                self.pauses.append(state.paused)
                self.ask(lambda client: client.resume_pool("small"))

    def calm(self) -> None:
        """Bring everything back."""
        for timer in self._later:
            timer.join()

    def _kill_daemon(self, name: str, away_s: float) -> bool:
        if any(timer.is_alive() for timer in self._later):
            return False
        self.cluster.kill(name)
        self._later = [threading.Timer(away_s, self.cluster.start, [name])]
        self._later[0].start()
        return True

    def _replace_sbatch(self) -> None:
        folder = self.folder / "bin"
        folder.mkdir()
        found = subprocess.run(["sh", "-c", "command -v sbatch"], capture_output=True, text=True, check=True)
        (folder / "sbatch").write_text(SBATCH.format(order=self.order, sbatch=found.stdout.strip()))
        (folder / "sbatch").chmod(0o755)
        self.environment["PATH"] = f"{folder}:{self.environment['PATH']}"

    def processes(self) -> Iterator[tuple[int, list[str]]]:
        """Return the processes inside this cluster, with their words."""
        inside = os.readlink(f"/proc/{self.cluster.pid}/ns/pid")
        for path in Path("/proc").iterdir():
            with suppress(OSError):
                if path.name.isdigit() and os.readlink(path / "ns" / "pid") == inside:
                    words = (path / "cmdline").read_bytes().decode(errors="replace").split("\0")
                    if words[0]:
                        yield int(path.name), words

    # What became of it.

    def rows(self, table: str) -> int:
        with closing(sqlite3.connect(self.folder / "home" / "fleet" / "queue.db")) as connection:
            return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def runs(self, number: int) -> list[list[tuple[int, float]]]:
        """Return the steps of each run of a job with their times; all its steps must be there."""
        found: dict[str, list[tuple[int, float]]] = {}
        for line in (self.folder / "steps" / str(number)).read_text().splitlines():
            process, step, at_s = line.split()
            found.setdefault(process, []).append((int(step), float(at_s)))
        assert {step for run in found.values() for step, _ in run} == set(range(STEPS)), (number, found)
        return list(found.values())

    def repeated(self, number: int, details: JobDetails) -> list[int]:
        """Return how many steps each later run of a job repeated, beyond those of a checkpoint that was not sent.

        Only steps count that were made before the job was granted again. What an earlier run still wrote afterwards is
        work of a program that had lost its job.
        """
        counts = []
        for before, after in pairwise(self.runs(number)):
            first, began_s = after[0]
            granted_s = max(one.granted_s for one in details.attempts if one.granted_s <= began_s)
            made = [(step, at_s) for step, at_s in before if at_s <= granted_s]
            end_s = made[-1][1] if made else 0.0
            saved = [(step, at_s) for step, at_s in made if step % SAVED_EVERY == SAVED_EVERY - 1]
            unsent = {step for step, at_s in saved if at_s > end_s - SENT_WITHIN_S and step >= first}
            self.unsent += len(unsent)
            counts.append(sum(step >= first for step, _ in made) - len(unsent) * SAVED_EVERY)
        return counts

    def charged(self, count: int) -> set[str]:
        """Return the jobs with an attempt that counts as their own or their worker's failure."""
        jobs = [self.details(f"chaos/{number}") for number in range(1, count + 1)]
        return {one.job.name for one in jobs if any(attempt.cause not in {"", "preempted"} for attempt in one.attempts)}

    def outlived_s(self, number: int, details: JobDetails) -> float:
        """Return for how long the program of a killed worker wrote steps."""
        killed_s = self.hit.get(details.job.name, math.inf)
        last_s = [run[-1][1] for run in self.runs(number) if run[0][1] <= killed_s]
        return max((at_s - killed_s for at_s in last_s if at_s > killed_s), default=0.0)

    def _is_swept(self) -> bool:
        self.resume_if_paused()
        return self.details("sweeper").job.state == "completed"

    def check_nothing_is_left(self) -> None:
        # The home of a killed worker goes with the next start on its machine.
        self._submit("sweeper", "--", "python3", "-c", "pass")
        self.until(self._is_swept, "the sweeper waits", 180)
        self.until(lambda: all(one.is_over for one in self.allocations()), "workers stay", 120)
        self.until(lambda: self.cluster.run("squeue", "-h", check=False).strip() == "", "Slurm has jobs", 120)
        self.until(
            lambda: not any(folders or files for _, folders, files in os.walk(self.shared)),
            "files are left in the shared folder",
            120,
        )
        self.until(lambda: not self.rows("invites") and not self.ask(lambda client: client.machines()), "rows stay", 60)
        left = [words for _, words in self.processes() if "--ticket" in words or "train.py" in words]
        assert left == []
        assert list((self.folder / "node").iterdir()) == [], "homes of workers are left"
        with closing(sqlite3.connect(self.folder / "home" / "fleet" / "queue.db")) as connection:
            valid = connection.execute("SELECT name FROM certificates WHERE revoked_s IS NULL AND name LIKE 'small-%'")
            assert valid.fetchall() == []
        self.run("admin", "db", "check")


@pytest.fixture
def cluster() -> Iterator[SlurmCluster]:
    if why := why_no_slurm():
        pytest.skip(why)
    with slurm(nodes=NODES) as cluster:
        yield cluster


@pytest.mark.slow
def test_no_fault_of_a_cluster_loses_a_job_or_records_it_twice(cluster: SlurmCluster, tmp_path: Path) -> None:
    site = Chaos(cluster, tmp_path, backlog=2 * NODES)
    began_s = time.monotonic()
    try:
        site.begin()
        site.submit(JOBS)
        site.disturb(lambda: sum(site.states()[one] for one in ("completed", "failed", "cancelled")) == JOBS)
        site.calm()
        seconds = time.monotonic() - began_s
        jobs = [site.details(f"chaos/{number}") for number in range(1, JOBS + 1)]
        report(site, jobs, seconds)
        failed = [(one.job.name, one.error, one.attempts) for one in jobs if one.job.state != "completed"]
        assert not failed, failed
        repeated = {number: site.repeated(number, details) for number, details in enumerate(jobs, 1)}
        every = [count for some in repeated.values() for count in some]
        outlived_s = max(site.outlived_s(number, details) for number, details in enumerate(jobs, 1))
        beyond = f"beyond those of {site.unsent} unsent checkpoints"
        print(f"{sum(every)} steps repeated, {max(every, default=0)} at most by one run, {beyond}")
        print(f"the program of a killed worker wrote its last step at most {outlived_s:.1f} s later")
        worst = {number: some for number, some in repeated.items() if max(some, default=0) > SAVED_EVERY}
        assert not worst, worst
        assert outlived_s <= GONE_WITHIN_S
        # A lease may expire before Slurm tells of a lost node: the charge is taken back then.
        site.until(lambda: site.charged(JOBS) <= site.hit.keys(), "charged although no worker of it was killed", 180)
        site.check_nothing_is_left()
    finally:
        site.calm()
        site.close()


@pytest.mark.slow
def test_a_pool_whose_machines_are_all_cancelled_pauses_with_the_reason_and_goes_on_when_resumed(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    backlog, count = 2, 4
    site = Chaos(cluster, tmp_path, backlog=backlog, steps=100)

    def is_served() -> bool:
        site.resume_if_paused()
        return any(one.state is AllocationState.SERVING for one in site.allocations())

    def is_done() -> bool:
        site.resume_if_paused()
        return site.states()["completed"] == count

    try:
        site.begin()
        site.submit(count)
        for _ in range(10):
            site.until(is_served, "no worker comes", 180)
            cluster.run("scancel", "--full", "--user=root", check=False)
            site.until(lambda: not any(one.state is AllocationState.SERVING for one in site.allocations()), "they stay")
        site.until(is_done, "they do not go on", 600)
        allocations = site.allocations()
        print(f"\n{len(allocations)} allocations, {len(site.pauses)} pauses: {site.pauses[0]}")
        assert all("cancelled at the backend" in why for why in site.pauses)
        assert len(site.pauses) >= 3
        assert max(waiting_at(allocations, one.planned_s) for one in allocations) <= backlog
        assert not any(any(site.details(f"chaos/{number}").counts.values()) for number in range(1, count + 1))
        site.check_nothing_is_left()
    finally:
        site.close()


def waiting_at(allocations: Sequence[Allocation], at_s: float) -> int:
    """Return how many allocations were requested and not started at a time."""
    ends_s = [(one.planned_s, one.started_s or one.ended_s or math.inf) for one in allocations]
    return sum(planned_s <= at_s < end_s for planned_s, end_s in ends_s)


def report(site: Chaos, jobs: list[JobDetails], seconds: float) -> None:
    """Print the figures of a run."""
    attempts = Counter(len(one.attempts) for one in jobs)
    causes = Counter(str(one.cause) for one in site.allocations())
    ends = Counter(str(attempt.cause or attempt.ending) for one in jobs for attempt in one.attempts)
    print(f"\n{len(jobs)} jobs in {seconds:.0f} s, {sum(site.faults.values())} faults: {dict(site.faults)}")
    print(f"states {dict(Counter(one.job.state for one in jobs))}, jobs by attempts {dict(sorted(attempts.items()))}")
    print(f"attempts by end {dict(ends)}; allocations by cause {dict(causes)}; {len(site.pauses)} pauses")


def environment_of(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def parent_of(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
