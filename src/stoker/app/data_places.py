"""Where data that is submitted may come from on this machine, joined: its store, the hub, its own files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from stoker.devices.this_machine import host_name
from stoker.jobs.data_places import DataPlaces, FoundRepository

if TYPE_CHECKING:
    from collections.abc import Callable

    from stoker.app.settings import AppSettings
    from stoker.core.clock import Clock
    from stoker.host.http.exchange import Transport
    from stoker.store.local_store import LocalStore
    from stoker.store.memo import Memo
    from stoker.store.records import Record
    from stoker.transfer.download.types import DownloadStop
    from stoker.transfer.hub.client import Hub
    from stoker.transfer.hub.listing import HubSettings

_LONGEST_WAIT_S = 30.0
_ATTEMPTS = 3
"""A submit, and a worker that prepares, wait in their own way, where it is seen (`worker.preparation.input_fetch`)."""


class _House(Protocol):
    settings: AppSettings

    @property
    def clock(self) -> Clock: ...
    @property
    def store(self) -> LocalStore: ...
    @property
    def memo(self) -> Memo: ...
    def open_transport(self, longest_wait_s: float) -> Transport: ...
    def hub_settings(self, endpoint: str) -> HubSettings: ...


def data_places_of(house: _House) -> DataPlaces:
    """Return what finds data for whoever submits from this home. Nothing is opened yet."""

    def find_kept(text: str) -> Record:
        from stoker.store.prune import resolve

        return resolve(house.store, text)[0]

    return DataPlaces(
        host=host_name(house.settings.environment)[0],
        find_kept=find_kept,
        find_repository=lambda text: _find_repository(house, text),
        find_file=lambda repo, name: _find_file(house, repo, name),
    )


def open_hub(house: _House, transport: Transport, stop: DownloadStop, heed: Callable[[int], None]) -> Hub:
    """Return the hub, as this home's settings name it; `heed` is told of every byte that comes."""
    from random import SystemRandom

    from stoker.host.resources import free_bytes
    from stoker.transfer.download.download_events import counting
    from stoker.transfer.download.types import DownloadTimeouts, DownloadTools
    from stoker.transfer.hub.client import Hub

    tools = DownloadTools(
        transport=transport,
        clock=house.clock,
        free_bytes=free_bytes,
        jitter=SystemRandom().random,
        say=counting(heed),
    )
    return Hub(
        house.hub_settings(""), tools=tools, patience=DownloadTimeouts(attempts=_ATTEMPTS), stop=stop, memo=house.memo
    )


def _find_repository(house: _House, text: str) -> FoundRepository:
    from stoker.transfer.download.types import DownloadStop
    from stoker.transfer.hub.listing import read_repo_at

    repo, revision = read_repo_at(text)
    transport = house.open_transport(_LONGEST_WAIT_S)
    try:
        hub = open_hub(house, transport, DownloadStop(), lambda _: None)
        commit = hub.resolve(repo, revision).commit
        files = hub.files(repo, commit)
    finally:
        transport.close()
    return FoundRepository(
        repo=str(repo), commit=commit, files=len(files), size_bytes=sum(one.size_bytes or 0 for one in files)
    )


def _find_file(house: _House, text: str, name: str) -> str:
    from stoker.transfer.download.types import DownloadStop
    from stoker.transfer.hub.hub_cache import HubCache
    from stoker.transfer.hub.listing import Revision, read_repo
    from stoker.transfer.hub.repository import RepoRequest, fetch_repository, first_cause

    repo_name, _, commit = text.rpartition("@")
    repo = read_repo(repo_name)
    folder = HubCache(house.hub_settings("").cache).snapshot(repo, commit)
    if os.path.exists(os.path.join(folder, name)):
        return folder
    transport = house.open_transport(_LONGEST_WAIT_S)
    try:
        hub = open_hub(house, transport, DownloadStop(), lambda _: None)
        file, _ = hub.file(repo, commit, name)
        # Under its commit alone: a branch is said to be here only with all that was asked of it.
        order = RepoRequest(repo=repo, revision=Revision(asked=commit, commit=commit), files=(file,))
        error = first_cause(fetch_repository(hub, order))
    finally:
        transport.close()
    if error is not None:
        raise error
    return folder
