"""One file to be fetched over a transport that answers by script, into a folder of its own, under a still clock."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.digests import Digest, digest_bytes
from stoker.core.errors import NetworkFailed
from stoker.core.events import Event
from stoker.host.durable import NO_STEP
from stoker.host.http.exchange import Request
from stoker.transfer.download.download import fetch_file
from stoker.transfer.download.types import (
    DownloadRequest,
    DownloadStop,
    DownloadTimeouts,
    DownloadTools,
    FetchedFile,
    TargetFile,
)
from tests.fakes.transport import FakeTransport, Scripted

URL = "https://host/models/file?signature=secret"
LARGE = random.Random(7).randbytes(3_000_000)
HALF = len(LARGE) // 2
SMALL = b"a small file"
ETAG, DATE = '"one"', "Wed, 01 Jan 2025 00:00:00 GMT"


Answer = Scripted | Exception | Callable[[Request], Scripted]


def served(request: Request, data: bytes, etag: str = ETAG, *, cut: int | None = None) -> Scripted:
    """Answer as a good server does; `cut`: end the body after so many of its bytes."""
    fields: tuple[tuple[str, str], ...] = (("ETag", etag), ("Last-Modified", DATE), ("Accept-Ranges", "bytes"))
    if request.headers.get("If-None-Match") == etag:
        return Scripted(status=304, fields=fields)
    found = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
    first = int(found[1]) if found and request.headers.get("If-Range", etag) == etag else 0
    if first >= len(data) > 0:
        return Scripted(status=416, fields=(*fields, ("Content-Range", f"bytes */{len(data)}")))
    body = b"" if request.method == "HEAD" else data[first:]
    fields = (*fields, ("Content-Length", str(len(data) - first)))
    if first:
        fields = (*fields, ("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}"))
    return Scripted(status=206 if first else 200, fields=fields, body=body if cut is None else body[:cut])


@contextmanager
def open_scene(folder: Path) -> Iterator[Scene]:
    """Return a scene, and see that nothing was left open."""
    made = Scene(folder)
    yield made
    assert made.transport.open_replies == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "stoker-hash"]


class Scene:
    def __init__(self, folder: Path, data: bytes = LARGE) -> None:
        self.folder = folder
        self.data = data
        self.transport = FakeTransport(lambda request: served(request, self.data))
        self.clock = FakeClock()
        self.events: list[Event] = []
        self.steps: list[str] = []
        self.stop = DownloadStop()
        self.free_bytes = 1 << 50
        self.on_step = NO_STEP
        self.received: dict[str, Digest] = {}
        self.landing = TargetFile(folder=str(folder), name="sub/f.bin", keeps_validators=True)

    @property
    def path(self) -> Path:
        return self.folder / "sub" / "f.bin"

    def beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    def names(self) -> list[str]:
        """What lies in the folder."""
        return sorted(path.name for path in self.path.parent.iterdir())

    def fetch(
        self, wanted: DownloadRequest | None = None, *, patience: DownloadTimeouts | None = None, **wishes: bool
    ) -> FetchedFile:
        tools = DownloadTools(
            transport=self.transport,
            clock=self.clock,
            free_bytes=lambda _: self.free_bytes,
            jitter=lambda: 0.5,
            say=self.events.append,
            keep=lambda came: self.received.update((fetched.path, fetched.sha256) for _, fetched in came),
            received=self.received.get,
            on_step=self._step,
        )
        return fetch_file(
            wanted or self.exact(),
            self.landing,
            tools=tools,
            patience=patience or DownloadTimeouts(attempts=3),
            stop=self.stop,
            **wishes,
        )

    def script(self, *answers: Answer) -> None:
        """Answer with these in turn, and well once they are used up."""
        rest = list(answers)

        def answer(request: Request) -> Scripted | Exception:
            made = rest.pop(0) if rest else served(request, self.data)
            return made(request) if callable(made) else made

        self.transport.script = answer

    def cut(self, at: int) -> Answer:
        """An answer that ends after so many bytes of its body."""
        return lambda request: served(request, self.data, cut=at)

    def interrupt(self, wanted: DownloadRequest | None = None, at: int = HALF) -> None:
        """Leave what a run leaves that was cut off after so many bytes."""
        self.script(self.cut(at), TimeoutError())
        with pytest.raises(NetworkFailed):
            self.fetch(wanted, patience=DownloadTimeouts(attempts=1))
        self.script()
        self.events.clear()
        self.transport.requests.clear()

    def exact(self) -> DownloadRequest:
        """Ask for exactly the bytes that are served, by size and digest."""
        return DownloadRequest(
            url=URL, label="the file", commit="c0ffee", size_bytes=len(self.data), sha256=digest_bytes(self.data)
        )

    def bare(self) -> DownloadRequest:
        return DownloadRequest(url=URL, label="the file", commit="c0ffee")

    def phases(self) -> list[str]:
        return [str(event.fields["phase"]) for event in self.events]

    def told(self, phase: str) -> list[dict[str, object]]:
        return [event.fields for event in self.events if event.fields["phase"] == phase]

    def asked(self) -> list[str]:
        """The method and range of each request."""
        return [f"{one.method} {one.headers.get('Range', '')}".strip() for one in self.transport.requests]

    def _step(self, name: str) -> None:
        self.steps.append(name)
        self.on_step(name)
