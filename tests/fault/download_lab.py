"""A place to try downloads under faults: a faulty server, a folder, a clock that stands still, and one way to judge.

`judge` runs a `Case`: perhaps a first run that is cut off, then a run while the server has its bad habit, then one
against a good server. Whatever the habit, the final name holds the bytes of one whole version or nothing, and the last
run finishes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from stoker.core.clock import Clock, FakeClock
from stoker.core.digests import Digest, digest_bytes
from stoker.core.errors import NetworkFailed, StokerError
from stoker.core.events import Event
from stoker.host.durable import NO_STEP
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings
from stoker.transfer.download.download import fetch_file
from stoker.transfer.download.types import (
    DownloadRequest,
    DownloadStop,
    DownloadTimeouts,
    DownloadTools,
    FetchedFile,
    TargetFile,
)
from tests.servers import habits as bad
from tests.servers.faulty import Asked, FaultyServer, Habit, Version, well

SIZE = 1_200_000
"""More than what is held in memory until it is whole: a fetch of this size leaves a partial file."""
HALF = SIZE // 2
NAME = "model.bin"
PLENTY = 1 << 50


def random_bytes(size: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(size)


ONE = Version(data=random_bytes(SIZE, 1), etag='"one"')
TWO = Version(data=random_bytes(SIZE, 2), etag='"two"', last_modified="Thu, 02 Jan 2025 00:00:00 GMT")


@dataclass(kw_only=True)
class Lab:
    """One folder to fetch into, from one server."""

    folder: Path
    server: FaultyServer
    clock: Clock
    transport: Urllib3Transport
    events: list[Event] = field(default_factory=list)
    free_bytes: Callable[[str], int] = lambda path: PLENTY
    on_step: Callable[[str], None] = NO_STEP
    stop: DownloadStop = field(default_factory=DownloadStop)
    received: dict[str, Digest] = field(default_factory=dict)
    """What was put where, as receipts would say it."""

    @property
    def path(self) -> Path:
        return self.folder / NAME

    @property
    def partial(self) -> Path:
        return self.folder / f"{NAME}.part"

    def fetch(
        self,
        version: Version | None = None,
        *,
        url: str = "",
        patience: DownloadTimeouts | None = None,
        landing: TargetFile | None = None,
        headers: dict[str, str] | None = None,
        size_bytes: int | None = None,
        **options: bool,
    ) -> FetchedFile:
        """Fetch the file of the server; with a version, exactly that one is wanted, by its digest."""
        wanted = DownloadRequest(
            url=url or self.server.url,
            sha256=None if version is None else digest_bytes(version.data),
            size_bytes=size_bytes,
            headers=headers or {},
        )
        tools = DownloadTools(
            transport=self.transport,
            clock=self.clock,
            free_bytes=self.free_bytes,
            jitter=lambda: 0.5,
            say=self.events.append,
            keep=lambda came: self.received.update((fetched.path, fetched.sha256) for _, fetched in came),
            received=self.received.get,
            on_step=self.on_step,
        )
        return fetch_file(
            wanted,
            landing or TargetFile(folder=str(self.folder), name=NAME),
            tools=tools,
            patience=patience or DownloadTimeouts(attempts=3),
            stop=self.stop,
            **options,
        )

    def code(self, version: Version | None = None, **options: object) -> int:
        """Fetch, and give the exit code that a shell would see; what is not an error of ours is raised."""
        try:
            self.fetch(version, **options)  # type: ignore[arg-type]
        except StokerError as error:
            return error.exit_code
        return 0

    def interrupt(self, at: int, version: Version | None = None, **options: object) -> None:
        """Leave what a run leaves that is cut off after so many bytes and gives up."""
        self.server.become(bad.breaking_off(at))
        with pytest.raises(NetworkFailed):
            self.fetch(version, patience=DownloadTimeouts(attempts=1), **options)  # type: ignore[arg-type]
        assert not self.path.exists()

    def has(self) -> bytes | None:
        return self.path.read_bytes() if self.path.exists() else None

    def leftovers(self) -> list[str]:
        """What lies beside the file."""
        return sorted(path.name for path in self.folder.iterdir() if path.name != NAME)

    def reasons(self) -> list[str]:
        """Why something was tried again, as it was told."""
        return [str(event.fields["reason"]) for event in self.events if event.fields.get("phase") == "retry"]


@contextmanager
def open_lab(folder: Path, version: Version = ONE, *, clock: Clock | None = None, read_s: float = 5.0) -> Iterator[Lab]:
    folder.mkdir(exist_ok=True)
    transport = Urllib3Transport(HttpSettings(connect_s=5.0, head_s=read_s, read_s=read_s))
    try:
        with FaultyServer(version) as server:
            yield Lab(folder=folder, server=server, clock=clock or FakeClock(), transport=transport)
            # Before the server goes: a kept connection would otherwise be closed by it, and be reported as leaked.
            transport.close()
    finally:
        transport.close()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A bad habit, what was there before it showed, and how the run must end."""

    id: str
    habit: Habit
    had: int = 0
    """How many bytes an earlier run has left."""
    before: Version = ONE
    """What that run was served."""
    serves: Version = ONE
    """What is served now."""
    ends: type[StokerError] | None = None
    """The error; None if the run ends with the right bytes."""
    ends_bare: type[StokerError] | str | None = "alike"
    """The same for a run that was told no digest; `blind` where nothing but a digest can tell."""
    asks: Callable[[list[Asked]], bool] = lambda asked: True
    """What must be true of the requests of this run."""
    read_s: float = 5.0


def judge(case: Case, folder: Path, *, with_digest: bool) -> None:
    ends = case.ends if with_digest or case.ends_bare == "alike" else case.ends_bare
    with open_lab(folder, case.before, read_s=case.read_s) as lab:
        if case.had:
            lab.interrupt(case.had, case.before if with_digest else None)
        lab.server.become(case.habit, case.serves)
        _run(lab, case.serves if with_digest else None, ends)
        if ends != "blind":
            assert case.asks(lab.server.gets()), [(one.target, one.fields) for one in lab.server.gets()]
        _check_end(lab, case.serves, ends)
        lab.server.become(well)
        lab.fetch(case.serves if with_digest else None)
        if ends != "blind":
            assert lab.has() == case.serves.data
            assert lab.leftovers() == []


def _run(lab: Lab, version: Version | None, ends: type[StokerError] | str | None) -> None:
    if ends is None or ends == "blind":
        lab.fetch(version)
        return
    assert isinstance(ends, type)
    with pytest.raises(ends) as caught:
        lab.fetch(version)
    assert type(caught.value) is ends
    assert "\n" not in caught.value.message


def _check_end(lab: Lab, serves: Version, ends: type[StokerError] | str | None) -> None:
    if ends is None:
        assert lab.has() == serves.data
        assert lab.leftovers() == []
    elif ends != "blind":
        assert lab.has() is None


def starts_over(asked: list[Asked]) -> bool:
    """The last request asked for the whole file."""
    return not asked[-1].first_byte


def goes_on(asked: list[Asked]) -> bool:
    """No request asked again for what was there."""
    return all(one.first_byte for one in asked)


def parametrised(cases: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.id)


def both_ways(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.parametrize("with_digest", [True, False], ids=["digest", "bare"])(test)
