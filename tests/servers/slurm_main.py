"""Process 1 of a namespace with a real Slurm in it: starts the daemons, obeys lines on standard input, reaps orphans.

`start NAME`, `signal NAME NUMBER`; each is answered by a line. When standard input closes, everything here ends.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

FOLDER = Path(sys.argv[1])
NODES = [f"n{number}" for number in range(int(sys.argv[2]))]
HOST = socket.gethostname().split(".")[0]
ENVIRONMENT = {**os.environ, "SLURM_CONF": str(FOLDER / "slurm.conf"), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
_READY_S = 60.0
# Slurm counts in whole minutes: `short` has the smallest limit there is. Jobs of `high` preempt those of `main`.
CONFIGURATION = f"""\
ClusterName=ci
SlurmctldHost={HOST}(127.0.0.1)
SlurmctldPort=16817
AuthType=auth/munge
AuthInfo=socket={FOLDER}/munge.sock
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={FOLDER}/state
SlurmdSpoolDir={FOLDER}/spool_%n
SlurmctldPidFile={FOLDER}/slurmctld.pid
SlurmdPidFile={FOLDER}/slurmd_%n.pid
SlurmctldLogFile={FOLDER}/log/slurmctld.log
SlurmdLogFile={FOLDER}/log/slurmd_%n.log
SwitchType=switch/none
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
ReturnToService=2
KillWait=2
SlurmdTimeout=6
PropagateResourceLimits=NONE
GresTypes=gpu
"""

children: dict[str, int] = {}
reaped: set[int] = set()


def main() -> None:
    """Start Slurm, print `ready`, obey."""
    signal.signal(signal.SIGCHLD, reap)
    network()
    configure()
    start("munged")
    wait_for((FOLDER / "munge.sock").exists)
    for name in ("slurmctld", *(f"slurmd_{node}" for node in NODES)):
        start(name)
    # Every slurmd talks to its controller; ask once it may answer.
    wait_for(lambda: output("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split() == ["idle"] * len(NODES))
    print("ready", flush=True)
    for line in sys.stdin:
        word, name, *number = line.split()
        if word == "start":
            start(name)
        else:
            os.kill(children[name], int(number[0]))
            while int(number[0]) == signal.SIGKILL and children[name] not in reaped:
                time.sleep(0.01)
        print("done", flush=True)


def reap(*_: object) -> None:
    """Collect every process that ended here."""
    with suppress(ChildProcessError):
        while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            reaped.add(pid)


def network() -> None:
    """Bring up the loopback interface, and another that leads nowhere: slurmd resolves no name with the first alone."""
    for words in (
        "link set lo up",
        "link add e0 type veth peer name e1",
        "addr add 10.99.0.1/24 dev e0",
        "link set e0 up",
        "link set e1 up",
    ):
        output("ip", *words.split())


def configure() -> None:
    """Write the files of munge and Slurm."""
    for name in ("state", "log", "munge"):
        (FOLDER / name).mkdir(mode=0o700)
    (FOLDER / "munge/key").write_bytes(os.urandom(128))
    (FOLDER / "munge/key").chmod(0o600)
    text = CONFIGURATION
    for number, node in enumerate(NODES):
        text += (
            f"NodeName={node} NodeHostname={HOST} NodeAddr=127.0.0.1 Port={16820 + number} CPUs=2 RealMemory=2000 "
            "Gres=gpu:fake:2 State=UNKNOWN\n"
        )
    every = ",".join(NODES)
    text += f"PartitionName=main Nodes={every} Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=2 State=UP\n"
    text += f"PartitionName=high Nodes={every} MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF State=UP\n"
    text += f"PartitionName=short Nodes={every} MaxTime=1 PriorityTier=1 State=UP\n"
    (FOLDER / "slurm.conf").write_text(text)
    # Terminals exist everywhere, and nobody opens them: what a step sees is CUDA_VISIBLE_DEVICES.
    devices = (
        f"NodeName={node} Name=gpu Type=fake File=/dev/tty[{1 + 2 * n}-{2 + 2 * n}]\n" for n, node in enumerate(NODES)
    )
    (FOLDER / "gres.conf").write_text("".join(devices))


def start(name: str) -> None:
    """Start one daemon, in the foreground as our child."""
    munge = FOLDER / "munge"
    node = name.removeprefix("slurmd_")
    commands = {
        "munged": [
            *("munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={FOLDER}/munge.sock"),
            *(f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"),
        ],
        "slurmctld": ["slurmctld", "-D", *([] if "slurmctld" in children else ["-i"])],
    }
    with (FOLDER / f"log/{name}.out").open("ab") as log:
        started = subprocess.Popen(
            commands.get(name, ["slurmd", "-D", "-N", node]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=ENVIRONMENT,
            start_new_session=True,
        )
    children[name] = started.pid
    # It is reaped with the others.
    started.returncode = 0


def output(*argv: str) -> str:
    """Return what a command prints, whatever its exit status: a signal handler has reaped it."""
    return subprocess.run(argv, env=ENVIRONMENT, capture_output=True, text=True, check=False).stdout


def wait_for(condition: object) -> None:
    deadline_s = time.monotonic() + _READY_S
    while not condition():  # type: ignore[operator]
        dead = [name for name, pid in children.items() if pid in reaped]
        if dead or time.monotonic() > deadline_s:
            logs = "".join(path.read_text(errors="replace")[-800:] for path in (FOLDER / "log").glob("*"))
            sys.exit(f"Slurm does not start, {dead} ended:\n{logs}")
        time.sleep(0.02)


if __name__ == "__main__":
    main()
