"""A fleet between hosts: one serves, others join it by codes over TLS. How jobs stand is read from its database."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from stoker.coordinator.database.database import Database, look_into
from stoker.coordinator.queue.reader import QueueReader
from stoker.core.clock import SystemClock
from stoker.core.errors import StokerError
from stoker.protocol.view_messages import AttemptView, JobDetails
from tests.system.hosts import Host, Lan, Running
from tests.system.shell import PATIENCE_S, wait_until

CLOCK = SystemClock()
PORT = 7717


class HostFleet:
    """The desk, which serves; whoever else is on the network may join it."""

    def __init__(self, lan: Lan) -> None:
        self.lan = lan
        self.desk = lan.add("desk")
        self.url = f"https://{self.desk.address}:{PORT}"
        self._database: Database | None = None

    def serve(self, *, lease: str = "4s") -> Running:
        """Start the coordinator, and wait until it listens."""
        times = ("--lease", lease, "--heartbeat", "0.5s")
        serving = self.desk.begin("serve", "--listen", f"0.0.0.0:{PORT}", *times, "--json")
        wait_until(lambda: serving.told() or serving.process.poll() is not None)
        assert serving.told(), serving.said()
        return serving

    def code(self, *words: str) -> str:
        """Have somebody invited; give what is typed behind `join`."""
        (told,) = self.desk.json("machines", "invite", *words)
        return next(line.split()[-1] for line in told["commands"] if self.desk.address in line)

    def join(self, host: Host) -> str:
        """Let a machine join; give what it was told."""
        return host.ok("join", self.code("--name", host.name))

    def work(self, host: Host, *words: object) -> Running:
        """Let a host work that has joined, or that serves."""
        # A variable of the test's own: it is looked for everywhere later.
        host.env |= {"API_KEY": secret_of(host), "UV_OFFLINE": "1"}
        return host.begin("work", "--json", *words)

    def story(self, name: str) -> JobDetails | None:
        """Return how a job stands; nothing where it can't be told just now."""
        try:
            if self._database is None:
                self._database = look_into(f"sqlite:///{self.desk.home / 'fleet' / 'queue.db'}", clock=CLOCK)
            return QueueReader(self._database, clock=CLOCK).story(name)
        except StokerError:
            return None

    def wait_for(
        self, name: str, claim: Callable[[JobDetails], object], patience_s: float = 2 * PATIENCE_S
    ) -> JobDetails:
        """Wait until something is so of a job."""
        deadline_s = CLOCK.monotonic_s() + patience_s
        while (story := self.story(name)) is None or not claim(story):
            assert CLOCK.monotonic_s() < deadline_s, f"it did not come true: {story}\n{self.lan.everything_said()}"
            CLOCK.sleep(0.1)
        return story

    def close(self) -> None:
        if self._database is not None:
            self._database.close()


def secret_of(host: Host) -> str:
    return f"known-to-{host.name}-alone"


def let_go(host: Host) -> None:
    """Let the programs that run on a host end."""
    (host.top / "user" / "go").touch()


def is_running(story: JobDetails) -> bool:
    return story.job.state == "running"


def is_completed(story: JobDetails) -> bool:
    assert story.job.state != "failed", story
    return story.job.state == "completed"


def last_try(story: JobDetails) -> AttemptView:
    return story.attempts[-1]


def holding(host: Host, text: str) -> list[str]:
    """Return the files on a host's disk that hold a text, and the processes whose titles do."""
    wanted = text.encode()
    titles = (Path("/proc", pid, "cmdline") for pid in os.listdir("/proc") if pid.isdigit())
    return [str(path) for path in (*host.top.rglob("*"), *titles) if _reads(path, wanted)]


def _reads(path: Path, wanted: bytes) -> bool:
    try:
        return path.is_file() and not path.is_symlink() and wanted in path.read_bytes()
    except OSError:
        # Gone since it was listed.
        return False
