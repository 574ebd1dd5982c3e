"""A real Slurm for tests: two nodes with fake GPUs in namespaces of their own, ready in about a second.

It has its own network and its own process numbers, so any number of them run beside each other, nothing of it is
reachable from elsewhere, and all of it ends with the test's process, even after a kill. The file system is shared: a
folder of a test is the folder that all nodes share.

Slurm's commands and everything that talks to its nodes must run inside:

    cluster.run("squeue")                             a command, to its end
    Popen(cluster.inside(["stoker", …]), env={**cluster.environment, …})      coordinator, watcher, any script
    HostCommands(cluster.runner(environment), …)      what a launcher takes
    with cluster.network(): …                         this thread's own connections go inside

Tests take the fixture `slurm_cluster`: one cluster per test process, cleared before each test. A worker that Slurm
starts reaches a coordinator inside at 127.0.0.1. Partitions: `main` (the default), `high` (preempts
`main`, after GraceTime=2 s), `short` (limit 1 min). KillWait is 2 s.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from stoker.host.command_runner import LIMIT_S, Reply, SubprocessRunner

_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
_PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "munged", "unshare", "nsenter", "setpriv", "ip")
_CLONE_NEWNET = 0x40000000
_CLEARED_S = 60.0


def why_no_slurm() -> str:
    """Return why no Slurm can be started here, or nothing."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)"
    if os.geteuid() != 0:
        return "namespaces of their own need root"
    tried = subprocess.run(
        ["unshare", "--net", "--pid", "--fork", "--mount-proc", "true"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else f"no namespaces here: {tried.stderr.decode(errors='replace').strip()}"


class SlurmCluster:
    """A running Slurm."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        """Of its configuration and logs."""
        self._process = process
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        self.pid = int(children[0])
        """Of its first process, as seen from outside."""

    @property
    def environment(self) -> dict[str, str]:
        """What commands inside need."""
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _PATH}

    def runner(self, environment: Mapping[str, str]) -> InsideRunner:
        """Return what runs a launcher's commands inside, with these variables and those that commands inside need."""
        return InsideRunner(self, environment)

    def inside(self, argv: Sequence[str]) -> list[str]:
        """Return the words that run a command inside. It needs `environment`, and ends with the cluster."""
        return ["nsenter", f"--target={self.pid}", "--net", "--pid", "--mount", "--", *argv]

    def run(self, *argv: str, stdin: str = "", check: bool = True) -> str:
        """Run a command inside; return what it prints."""
        done = subprocess.run(
            self.inside(argv),
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout + (done.stderr if not check else "")

    @contextmanager
    def network(self) -> Iterator[None]:
        """Let this thread open its connections inside until the block ends."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as ours, open(f"/proc/{self.pid}/ns/net") as theirs:
            assert libc.setns(theirs.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(ours.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())

    def kill(self, name: str) -> None:
        """Kill -9 of a daemon: `slurmctld`, `slurmd_n0`, `slurmd_n1`."""
        self._order(f"signal {name} {int(signal.SIGKILL)}")

    def freeze(self, name: str) -> None:
        self._order(f"signal {name} {int(signal.SIGSTOP)}")

    def thaw(self, name: str) -> None:
        self._order(f"signal {name} {int(signal.SIGCONT)}")

    def start(self, name: str) -> None:
        """Start a daemon again, with the state that it kept."""
        self._order(f"start {name}")

    def clear(self) -> None:
        """End all jobs and wait until none is left, so that the next test finds an idle cluster."""
        self.run("scancel", "--signal=KILL", "--full", "-u", "root", check=False)
        self.run("scancel", "-u", "root", check=False)
        # A job that completes while its daemons were killed waits for their next contact.
        deadline_s = time.monotonic() + _CLEARED_S
        while self.run("squeue", "-h", check=False).strip():
            assert time.monotonic() < deadline_s, self.run("squeue", check=False)
            time.sleep(0.05)

    def _order(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n", line


class InsideRunner:
    """Runs commands inside a cluster: what a launcher takes in the place of a `SubprocessRunner`."""

    def __init__(self, cluster: SlurmCluster, environment: Mapping[str, str]) -> None:
        self._cluster = cluster
        inside = {"SLURM_CONF": cluster.environment["SLURM_CONF"], "PATH": _PATH}
        self._runner = SubprocessRunner({**environment, **inside}, language=None)
        self.commands: list[tuple[str, ...]] = []
        """What was run."""

    def ask(self, argv: Sequence[str], *, limit_s: float = LIMIT_S, stdin: str = "") -> Reply:
        self.commands.append(tuple(argv))
        return self._runner.ask(self._cluster.inside(argv), limit_s=limit_s, stdin=stdin)

    def ask_all(self, commands: Sequence[Sequence[str]], *, limit_s: float = LIMIT_S) -> tuple[Reply, ...]:
        return tuple(self.ask(argv, limit_s=limit_s) for argv in commands)


@contextmanager
def slurm(nodes: int = 2) -> Iterator[SlurmCluster]:
    """Run a Slurm until the block ends."""
    # A short path: the socket of munge lies in it.
    folder = Path(tempfile.mkdtemp(prefix="stoker-slurm-"))
    main = Path(__file__).with_name("slurm_main.py")
    wrapper = [
        "setpriv",
        "--pdeathsig=KILL",
        "unshare",
        "--net",
        "--pid",
        "--fork",
        "--kill-child=KILL",
        "--mount-proc",
    ]
    process = subprocess.Popen(
        [*wrapper, sys.executable, "-S", "-E", str(main), str(folder), str(nodes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", "see above"
        yield SlurmCluster(folder, process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        shutil.rmtree(folder, ignore_errors=True)
