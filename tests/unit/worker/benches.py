"""A machine of its own in a folder, and another one that has trees: for tests of what is brought."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from stoker.core.clock import Clock, SystemClock
from stoker.core.job import InputKind, JobInput
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings
from stoker.protocol.client import FleetClient
from stoker.protocol.lease_messages import Grant
from stoker.protocol.transport import RequestTimeouts
from stoker.store.local_store import LocalStore
from stoker.store.memo import read_tree
from stoker.transfer.download.types import DownloadStop
from stoker.transfer.hub.client import Hub
from stoker.transfer.peer_files import PeerFiles
from stoker.transfer.peer_server import PeerServer
from stoker.transfer.trees.tree_sources import CoordinatorSource
from stoker.worker.preparation.input_check import LocalInputs
from stoker.worker.preparation.input_fetch import InputFetcher, InputFetcherContext
from stoker.worker.preparation.prepare_child import PrepareLine
from stoker.worker.preparation.workspaces import DataCache, Workspaces, take_in
from tests.unit.worker.tiny_wheels import maker_in
from tests.unit.worker.worker_on_paper import grant

CLOCK = SystemClock()
HOST = "desk"


class MachineAlone:
    """One machine: its store, its shelves, what looks and what brings."""

    opened: ClassVar[list[MachineAlone]] = []

    def __init__(self, folder: Path, *, host: str = HOST, may_read_in_place: bool = True, url: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.store = LocalStore(str(folder / "store"), clock=CLOCK)
        self.store.open()
        self.maker = maker_in(str(folder))
        places = folder / "workspaces"
        self.data = DataCache(str(places / ".data"), self.store, CLOCK)
        self.here = LocalInputs(
            store=lambda: self.store,
            maker=self.maker,
            workspaces=Workspaces(str(places), str(folder / "runs")),
            data=lambda: self.data,
            host=host,
            may_read_in_place=may_read_in_place,
        )
        self.opened.append(self)
        self.stop = DownloadStop()
        self.told: list[PrepareLine] = []
        self.open_hub: Callable[..., Any] = _no_hub
        self.clock: Clock = CLOCK
        self._transport = Urllib3Transport(HttpSettings(no_proxy=("*",), connect_s=2.0))
        self.client = FleetClient(
            self._transport,
            url or "http://127.0.0.1:9",
            clock=CLOCK,
            patience=RequestTimeouts(answer_s=10.0, retry_s=0.0),
        )

    def bring(self, wanted: Grant) -> PrepareLine:
        bench = InputFetcherContext(
            here=self.here,
            store=self.store,
            data=self.data,
            maker=self.maker,
            origins=CoordinatorSource(self.client),
            open_hub=self.open_hub,
            stop=self.stop,
            clock=self.clock,
            say=self.told.append,
        )
        return InputFetcher(bench, wanted).run()

    @classmethod
    def close_all(cls) -> None:
        for machine in cls.opened:
            machine._transport.close()
            machine.store.close()
        cls.opened.clear()


def _no_hub(*_: Any) -> Hub:
    raise AssertionError


def input_at(path: Path, store: LocalStore, *, where: str = "env:DATA", host: str = HOST) -> JobInput:
    """Return what whoever submits says of what lies at a path."""
    tree = read_tree(str(path), path.name, memo=store.memo, clock=CLOCK)
    kind = InputKind.TREE if path.is_dir() else InputKind.FILE
    return JobInput(
        where=where, kind=kind, tree=tree.digest(), name=path.name, size_bytes=tree.size_bytes, files=1,
        path=str(path), host=host,
    )  # fmt: skip


def kept_tree(path: Path, store: LocalStore) -> str:
    """Put a folder into a store, as if it had come; give its tree."""
    tree = str(read_tree(str(path), path.name, memo=store.memo, clock=CLOCK).digest())
    assert take_in(str(path), path.name, tree, store, clock=CLOCK, heed=lambda _: None)
    return tree


def wanting(**more: Any) -> Grant:
    return grant("job", **more)


@contextmanager
def giving(store: LocalStore) -> Iterator[str]:
    """Return a store's trees away; gives where."""
    server = PeerServer(PeerFiles(store, clock=CLOCK), clock=CLOCK)
    server.start()
    try:
        yield server.url
    finally:
        server.close()


def files_in(folder: str) -> dict[str, bytes]:
    found = {}
    for top, _, names in os.walk(folder):
        for name in names:
            path = Path(top, name)
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found
