"""Hosts on one network: each with its own network, host name, home and disk; nothing but the kernel is shared.

A host is a set of namespaces, and a cable to a switch. Its cable can be pulled, made slow, and counted. What the other
hosts keep is hidden from it, so that nothing gets from one to another but through the cable.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.fault.network import ip
from tests.system.shell import PATIENCE_S, Done, Shell, alive, descendants, wait_until
from tests.system.warm import stoker_argv

_ENTERS = 'hostname "$0"; while [ "$1" != -- ]; do mount -t tmpfs hidden "$1"; shift; done; shift; exec "$@"'
"""What a command of a host begins with: its name is set, and what belongs to others is covered."""


class Running:
    """A command that was started on a host and runs until it is ended; what it says goes into a file."""

    def __init__(self, argv: list[str], cwd: Path, env: Mapping[str, str], said: Path) -> None:
        self._said = said
        with said.open("ab") as out:
            self.process = subprocess.Popen(argv, cwd=cwd, env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def said(self) -> str:
        return self._said.read_text()

    def told(self) -> list[dict[str, Any]]:
        """Return what it said as JSON, as far as it is whole."""
        lines = self.said().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def kinds(self) -> list[str]:
        return [told.get("kind", "") for told in self.told()]

    def wait_for(self, kind: str) -> None:
        wait_until(lambda: kind in self.kinds() or self.process.poll() is not None)
        assert kind in self.kinds(), self.said()[-3000:]

    def end(self) -> None:
        """End it in order, and everything below it for certain."""
        below = descendants(self.process.pid)
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._clear(below)

    def kill(self) -> None:
        """Let it and everything below it be gone, as when the plug is pulled."""
        below = descendants(self.process.pid)
        self.process.kill()
        self.process.wait(PATIENCE_S)
        self._clear(below)

    def _clear(self, pids: set[int]) -> None:
        for pid in alive(pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Host(Shell):
    """One host: a shell in its namespaces. Its own disk is `top`; nobody else sees it."""

    def __init__(self, lan: Lan, name: str, address: str, top: Path, index: Path) -> None:
        super().__init__(top, index=index)
        self.lan, self.name, self.address, self.top = lan, name, address, top
        (top / "user").mkdir()
        self.env |= {"HOME": str(top / "user"), "LANG": "C.UTF-8"}
        self._enters = ("ip", "netns", "exec", lan.space(name), "unshare", "--uts", "sh", "-c", _ENTERS, name)
        self._running: list[Running] = []

    def hide(self, others: list[Path]) -> None:
        """Cover what belongs to others."""
        self.before = (*self._enters, *map(str, others), "--")

    def run(self, *words: object) -> Done:
        """Run any program here."""
        ended = subprocess.run(
            [*self.before, *map(str, words)],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Done(code=ended.returncode, out=ended.stdout, err=ended.stderr)

    def _begin(self, words: tuple[object, ...], env: dict[str, str]) -> subprocess.Popen[str]:
        whole = {**self.env, **env}
        return subprocess.Popen(
            [*self.before, *stoker_argv(whole), *map(str, words)],
            cwd=self.folder,
            env=whole,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ok(self, *words: object) -> str:
        """Run a command of ours that has to succeed; give what it printed."""
        done = self.stoker(*words)
        assert done.code == 0, f"{words}: {done.code}\n{done.out}\n{done.err}\n{self.lan.everything_said()}"
        return done.out

    def json(self, *words: object) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ok(*words, "--json").splitlines()]

    def begin(self, *words: object) -> Running:
        """Start a command of ours and leave it running."""
        return self.begin_program(sys.executable, "-P", "-m", "stoker", *words)

    def begin_program(self, *words: object) -> Running:
        """Start any program here and leave it running."""
        running = Running(
            [*self.before, *map(str, words)], self.folder, self.env, self.top / f"said-{len(self._running)}"
        )
        self._running.append(running)
        return running

    def listeners(self) -> list[str]:
        """Return the addresses at which something listens beyond this host itself."""
        lines = self.run("ss", "-Hltn").out.splitlines()
        found = [line.split()[3] for line in lines]
        return [one for one in found if not one.startswith(("127.", "[::1]"))]

    def unplug(self) -> None:
        """Pull its cable: everything that is sent vanishes, and nobody is told."""
        ip("-n", self.lan.switch, "link", "set", f"v{self.name}", "down")

    def plug_in(self) -> None:
        ip("-n", self.lan.switch, "link", "set", f"v{self.name}", "up")

    def slow_down(self, rate: str) -> None:
        """Let its cable carry no more than this, each way: 64mbit."""
        shape = ("root", "tbf", "rate", rate, "burst", "128k", "latency", "100ms")
        for space, device in ((self.lan.space(self.name), "eth0"), (self.lan.switch, f"v{self.name}")):
            subprocess.run(["tc", "-n", space, "qdisc", "replace", "dev", device, *shape], check=True)

    def sent_bytes(self) -> int:
        """Return what went out over its cable so far."""
        asks = ["ip", "-n", self.lan.space(self.name), "-j", "-s", "link", "show", "eth0"]
        (told,) = json.loads(subprocess.run(asks, capture_output=True, text=True, check=True).stdout)
        return int(told["stats64"]["tx"]["bytes"])

    def everything_said(self) -> str:
        return "\n".join(f"{self.name}: {one.said()[-2500:]}" for one in self._running)

    def end(self) -> None:
        for running in reversed(self._running):
            running.end()


class Lan:
    """A switch, and hosts on it."""

    def __init__(self, prefix: str, folder: Path, index: Path) -> None:
        self._prefix, self._folder, self._index = prefix, folder, index
        self.switch = self.space("switch")
        self.hosts: list[Host] = []

    def space(self, name: str) -> str:
        return f"{self._prefix}-{name}"

    def make(self) -> None:
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "br0", "up")

    def add(self, name: str) -> Host:
        """Plug in another host."""
        address = f"10.77.3.{len(self.hosts) + 1}"
        space = self.space(name)
        host = Host(self, name, address, self._folder / name, self._index)
        self.hosts.append(host)
        ip("netns", "add", space)
        ip("-n", space, "link", "set", "lo", "up")
        ip("-n", self.switch, "link", "add", f"v{name}", "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("-n", self.switch, "link", "set", f"v{name}", "master", "br0", "up")
        ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")
        for one in self.hosts:
            one.hide([other.top for other in self.hosts if other is not one])
        return host

    def everything_said(self) -> str:
        return "\n".join(host.everything_said() for host in self.hosts)

    def remove(self) -> None:
        for host in self.hosts:
            host.plug_in()
        for host in reversed(self.hosts):
            host.end()
        for name in (self.switch, *(self.space(host.name) for host in self.hosts)):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


@contextmanager
def lan(folder: Path, index: Path) -> Iterator[Lan]:
    """Make a network for a while; skips where that is not permitted."""
    made = Lan(f"lan{os.getpid()}", folder, index)
    try:
        try:
            made.make()
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"network namespaces can't be made here: {error}")
        yield made
    finally:
        made.remove()
