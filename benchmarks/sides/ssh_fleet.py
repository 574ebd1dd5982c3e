"""Hosts in network namespaces, each with its own sshd, and a desk that starts a worker on each of them.

    python ssh_fleet.py watch|loop --home FOLDER --environment FOLDER --runtime FOLDER --count N

`watch`: by `stoker launch watch`, with three bad hosts beside them. `loop`: by a shell loop that sends the same scripts
by ssh, 16 at once.

It runs inside namespaces of its own, of processes and of the network: with it everything ends. The clock runs from the
start of the watcher, or of the loop, until all workers serve. Hosts have a bridge to the desk, where the coordinator
is, host names, and folders of their own; they share the kernel and the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fleet
from fleet import Coordinator
from peers import Installed

DESK = "10.77.0.1"
REFUSING, SILENT, CHANGED = "10.77.255.1", "10.77.255.2", "10.77.255.3"
WAIT_S = 400.0
AT_ONCE = 16
LOOP = 'cd "$0" && ls *.sh | xargs -n 1 -P {most} sh -c \'ssh -T "${{1%.sh}}" sh -s < "$1"\' sh'
HOST = """\
read -r _
ip link set lo up
ip addr add {address}/16 dev eth0
ip link set eth0 up
hostname {name}
exec {sshd} -D -e -f {config}
"""
SSHD = """\
HostKey {home}/host
AuthorizedKeysFile {home}/user.pub
StrictModes no
UsePAM no
PidFile none
PermitRootLogin prohibit-password
SetEnv SHLVL=3 TMPDIR={folder} {language}
"""
SSH = """\
Host *
  IdentityFile {home}/user
  IdentitiesOnly yes
  UserKnownHostsFile {home}/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking accept-new
"""
POOL = "  - {{ name: {name}, backend: ssh, via: {address}, folder: {folder}, python: {python}, min: 1, idle: 10m }}\n"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("watch", "loop"))
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--environment", type=Path, required=True, help="the folder of the environment with Stoker")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--runtime", type=Path, required=True, help="a folder with a short path, for sockets")
    parser.add_argument("--real", type=int, help="workers that are real; of the others only the start counts")
    asked = parser.parse_args()
    home: Path = asked.home
    os.environ["STOKER_HOME"] = str(home)
    # Of connections that are kept open: a short path, and of this network alone.
    os.environ["STOKER_RUNTIME"] = str(asked.runtime)
    here = Installed(name="stoker", folder=asked.environment)
    real = asked.count if asked.real is None else asked.real
    hosts = {f"h{number:03}": f"10.77.{number // 200}.{number % 200 + 10}" for number in range(asked.count)}
    bad = {"refusing": REFUSING, "silent": SILENT, "changed": CHANGED} if asked.way == "watch" else {}
    _make_keys(home)
    _make_bridge()
    stand_in = home / "stand_in"
    versions = f"3.11.0 {here.version('stoker')}"
    stand_in.write_text(f"#!/bin/sh\n[ \"$1\" = -c ] && exec echo '{versions}'\nexec sleep 600\n")
    stand_in.chmod(0o755)
    pools = [
        POOL.format(
            name=name,
            address=address,
            folder=home / "hosts" / name,
            python=here.python if number < real else stand_in,
        )
        for number, (name, address) in enumerate({**hosts, **bad}.items())
    ]
    (home / "cluster.yaml").write_text(f"pools:\n{''.join(pools)}")
    for name, address in {**hosts, "changed": CHANGED}.items():
        _start_host(home, name, address)
    # What is sent there vanishes. A bridge forgets its neighbours with each host that is plugged in.
    _ip(f"neigh replace {SILENT} lladdr 02:00:00:00:00:01 dev br0 nud permanent")
    with fleet.serving(here, home, "--cluster", str(home / "cluster.yaml"), listen="0.0.0.0:0") as coordinator:
        url = f"https://{DESK}:{coordinator.url.rpartition(':')[2]}"
        ways = {"watch": by_watcher, "loop": by_loop}
        print(json.dumps(ways[asked.way](here, coordinator, url, hosts, real)), flush=True)
    # Workers and daemons end with this process, which is the first of its namespace.


def by_watcher(
    here: Installed, coordinator: Coordinator, url: str, hosts: dict[str, str], real: int
) -> dict[str, object]:
    """Let the watcher start them, and count the bad hosts that it names."""
    log = coordinator.home / "watch.log"
    with log.open("wb") as out:
        started_s = time.perf_counter()
        watcher = subprocess.Popen([here.program("stoker"), "launch", "watch", "--json", "--url", url], stdout=out)
        try:
            _wait_for(coordinator, real, len(hosts), log)
            seconds = time.perf_counter() - started_s
            _until(lambda: len(_named(log)) == 3, "bad hosts are not named", log)
            named_s = time.perf_counter() - started_s
            status = Path(f"/proc/{watcher.pid}/status").read_text().splitlines()
        finally:
            watcher.send_signal(signal.SIGTERM)
            watcher.wait(60)
    peak = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    return {"seconds": seconds, "executed": len(hosts), "peak": peak, "named": _named(log), "named_s": named_s}


def by_loop(
    _here: Installed, coordinator: Coordinator, url: str, hosts: dict[str, str], real: int
) -> dict[str, object]:
    """Start the same workers by a shell loop; their tickets are made before."""
    scripts = coordinator.home / "scripts"
    scripts.mkdir()
    _write_scripts(scripts, coordinator, url, hosts)
    started_s = time.perf_counter()
    subprocess.run(["sh", "-c", LOOP.format(most=AT_ONCE), str(scripts)], check=True, stdout=subprocess.DEVNULL)
    _wait_for(coordinator, real, 0, coordinator.home / "serve.log")
    return {"seconds": time.perf_counter() - started_s, "executed": len(hosts)}


def _write_scripts(scripts: Path, coordinator: Coordinator, url: str, hosts: dict[str, str]) -> None:
    """Write what the watcher would send to each host: `ADDRESS.sh`."""
    from contextlib import closing

    from stoker import Client
    from stoker.core.pool import Allocation
    from stoker.host.command_runner import SubprocessRunner
    from stoker.launch.commands import HostCommands
    from stoker.launch.hosts import HostLauncher
    from stoker.launch.launchers import fill
    from stoker.protocol.enrolment_messages import Ticket, ticket_to_text

    commands = HostCommands(SubprocessRunner(dict(os.environ)), control_folder=str(coordinator.home / "control"))
    launcher = HostLauncher(commands, folder="", python="")
    with closing(Client()) as opened:
        client = opened._wire  # noqa: SLF001 - verbs of a watcher
        view = client.launch_view()
        for number, state in enumerate(view.pools):
            pool = state.pool
            epoch = client.watch_pools("loop", (pool.name,), for_s=WAIT_S)[pool.name]
            one = Allocation(id=f"{number:06x}", pool=pool.name)
            key = client.plan_allocations(pool.name, epoch, [(one.id, ())])[one.id]
            ticket = ticket_to_text(Ticket(id=one.id.upper(), key=key, url=url, name=one.machine)).rstrip("\n")
            text = fill(launcher.render(pool, [one], fleet=view.fleet).stdin, {one.id: ticket})
            (scripts / f"{hosts[pool.name]}.sh").write_text(text)


def _wait_for(coordinator: Coordinator, serving: int, started: int, log: Path) -> None:
    """Wait until so many workers serve, and so many at least were started."""

    def is_so() -> bool:
        states = [one["state"] for one in coordinator.get("/v1/launch")["allocations"]]
        return states.count("serving") >= serving and sum(one in ("started", "serving") for one in states) >= started

    _until(is_so, f"not all of {serving} workers serve", log, pause_s=0.3)


def _named(log: Path) -> dict[str, str]:
    """Return what the watcher logged of the bad hosts, by their pools' names."""
    events = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
    return {
        event["pool"]: event["why"]
        for event in events
        if event.get("pool") in ("refusing", "silent", "changed") and event["kind"] != "pool_watched"
    }


def _make_keys(home: Path) -> None:
    for name in ("host", "user", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / name], check=True)
    (home / "known_hosts").write_text(f"{CHANGED} {(home / 'other.pub').read_text()}")
    (home / "ssh_config").write_text(SSH.format(home=home))
    programs = home / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {home}/ssh_config "$@"\n')
    (programs / "ssh").chmod(0o755)
    os.environ["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"


def _make_bridge() -> None:
    _ip("link set lo up")
    _ip("link add br0 type bridge")
    _ip(f"addr add {DESK}/16 dev br0")
    _ip(f"addr add {REFUSING}/16 dev br0")
    _ip("link set br0 up")


def _start_host(home: Path, name: str, address: str) -> None:
    """Start a host, and plug it in."""
    folder = home / "hosts" / name
    folder.mkdir(parents=True, mode=0o700)
    language = " ".join(f"{name}={value}" for name, value in os.environ.items() if name.startswith(("LANG", "LC_")))
    (folder / "sshd_config").write_text(SSHD.format(home=home, folder=folder, language=language))
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    script = HOST.format(address=address, name=name, sshd=sshd, config=folder / "sshd_config")
    with (folder / "sshd.log").open("wb") as log:
        host = subprocess.Popen(
            ["unshare", "--net", "--uts", "sh", "-c", script], stdin=subprocess.PIPE, stdout=log, stderr=log, text=True
        )
    assert host.stdin is not None
    here = os.readlink("/proc/self/ns/net")
    _until(lambda: os.readlink(f"/proc/{host.pid}/ns/net") != here, "no namespace", folder / "sshd.log", pause_s=0.002)
    _ip(f"link add v{name} type veth peer name eth0 netns {host.pid}")
    _ip(f"link set v{name} master br0 up")
    host.stdin.write("go\n")
    host.stdin.close()
    _until(lambda: b"listening" in (folder / "sshd.log").read_bytes(), "no sshd", folder / "sshd.log", pause_s=0.02)


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


def _until(is_so: Callable[[], bool], otherwise: str, log: Path, *, pause_s: float = 0.1) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{otherwise}:\n{log.read_text()[-3000:]}")
        time.sleep(pause_s)


if __name__ == "__main__":
    main()
