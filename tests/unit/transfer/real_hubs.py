"""A fake hub, a real transport to it and a cache in a temporary folder, with everything that a fetch needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stoker.core.clock import SystemClock
from stoker.core.events import Event
from stoker.core.frozen import changed
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings
from stoker.host.resources import free_bytes
from stoker.store.memo import Memo
from stoker.transfer.download.types import DownloadOutcome, DownloadStop, DownloadTimeouts, DownloadTools, FetchedFile
from stoker.transfer.hub.client import Hub
from stoker.transfer.hub.listing import HubSettings, Repo, RepoFile
from stoker.transfer.hub.repository import RepoRequest, fetch_repository
from tests.servers.hub import FakeHub, Served

REPO = Repo(name="org/name")
LARGE = bytes(range(256)) * 12_000
"""3 MB: large enough for the engine."""
FILES: dict[str, bytes | Served] = {
    "config.json": b'{"a": 1}\n',
    "empty.txt": b"",
    "nested/deep/notes.md": b"# notes\n",
    "nested/again.json": b'{"a": 1}\n',
    "model.bin": Served(LARGE, is_large=True),
    "tiny.bin": Served(b"tiny but large for git", is_large=True),
}


def content(path: str) -> bytes:
    file = FILES[path]
    return file.data if isinstance(file, Served) else file


@contextmanager
def client_of(endpoint: str, folder: Path) -> Iterator[Hub]:
    """Return a client's side by itself, for a process of its own."""
    transport = Urllib3Transport(HttpSettings())
    memo = Memo(str(folder / "memo.db"), set_aside=lambda path, reason: None)
    tools = DownloadTools(transport=transport, clock=SystemClock(), free_bytes=free_bytes, jitter=lambda: 0.0)
    settings = HubSettings(endpoint=endpoint, cache=str(folder / "hub"))
    try:
        yield Hub(settings, tools=tools, patience=DownloadTimeouts(attempts=3), stop=DownloadStop(), memo=memo)
    finally:
        transport.close()
        memo.close()


class Scene:
    """One fake hub with `org/name` in it, and a client's side."""

    def __init__(self, fake: FakeHub, folder: Path) -> None:
        self.fake = fake
        self.folder = folder
        self.cache = folder / "hub"
        self.news: list[Event] = []
        self.stop = DownloadStop()
        self.commit = fake.repository("org/name").commit(FILES)
        self.transport = Urllib3Transport(HttpSettings())
        self.memo = Memo(str(folder / "memo.db"), set_aside=lambda path, reason: None)

    @property
    def repo_folder(self) -> Path:
        return self.cache / "models--org--name"

    @property
    def snapshot(self) -> Path:
        return self.repo_folder / "snapshots" / self.commit

    def hub(self, **settings: object) -> Hub:
        tools = DownloadTools(
            transport=self.transport,
            clock=SystemClock(),
            free_bytes=free_bytes,
            jitter=lambda: 0.0,
            say=self.news.append,
        )
        plain = HubSettings(endpoint=self.fake.endpoint, cache=str(self.cache))
        return Hub(
            changed(plain, **settings),
            tools=tools,
            patience=DownloadTimeouts(attempts=3),
            stop=self.stop,
            memo=self.memo,
        )

    def fetch(
        self, hub: Hub | None = None, *, files: tuple[RepoFile, ...] | None = None, rev: str = "main", **order: object
    ) -> list[DownloadOutcome]:
        hub = hub or self.hub()
        revision = hub.resolve(REPO, rev)
        wanted = hub.files(REPO, revision.commit) if files is None else files
        plain = RepoRequest(repo=REPO, revision=revision, files=wanted)
        return fetch_repository(hub, changed(plain, **order))

    def downloads(self) -> int:
        """How many bodies were asked for since the last look."""
        asked = [one for one in self.fake.asked if one.method == "GET" and "/api/" not in one.target]
        self.fake.asked.clear()
        return len(asked)


@contextmanager
def scenes(folder: Path, **particulars: object) -> Iterator[Scene]:
    with FakeHub(**particulars) as fake:  # type: ignore[arg-type]
        scene = Scene(fake, folder)
        try:
            yield scene
        finally:
            scene.transport.close()
            scene.memo.close()


def fetched(outcomes: list[DownloadOutcome], path: str) -> FetchedFile:
    found = named(outcomes, path).fetched
    assert found is not None
    return found


def named(outcomes: list[DownloadOutcome], path: str) -> DownloadOutcome:
    return next(outcome for outcome in outcomes if path_of(outcome) == path)


def path_of(outcome: DownloadOutcome) -> str:
    """Return the path of an outcome's file in its repository."""
    return outcome.label.removeprefix(f"{REPO}: ")
