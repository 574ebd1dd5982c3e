"""What this machine offers to plans, runs and workers: data, the hub, earlier measurements, environments.

Everything is imported on use: a command pays only for what it asks.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import TYPE_CHECKING

from stoker.api.app_parts import with_kernels_kept

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stoker.api.app_parts import AppParts, AppSettings
    from stoker.core.clock import Clock
    from stoker.devices.estimate.terms import EstimatedWork
    from stoker.engine.recipe import MachineContext, MeasuredPeakCorrection
    from stoker.engine.runners.shared.shared_runner import SharedProcessRunner, SharedProcessSettings
    from stoker.host.http.exchange import Transport
    from stoker.host.users import OtherUser
    from stoker.jobs.request import DataPlaces, FoundRepository
    from stoker.store.records import Record
    from stoker.transfer.download.types import DownloadStop
    from stoker.transfer.hub.client import Hub
    from stoker.worker.environments.environment_builder import Maker
    from stoker.worker.preparation.input_check import LocalInputs
    from stoker.worker.preparation.workspaces import DataCache


def surroundings_of(house: AppParts) -> MachineContext:
    """Return what plans that are made here may know of this machine; what costs time is found out on use."""
    from stoker.devices.admission import memory_here
    from stoker.engine.recipe import MachineContext

    def remember(work: EstimatedWork) -> MeasuredPeakCorrection:
        return remembered(house.settings.peaks, work)

    return MachineContext(
        hub_cache=lambda: house.hub_settings("").cache,
        environments=lambda: house.settings.envs,
        rooms=lambda: {one.name: one.total_bytes for one in house.devices if one.total_bytes is not None},
        memory=memory_here,
        remembered=remember,
        fetches=lambda: not house.hub_settings("").offline,
    )


# Where data that is submitted may come from: the store, the hub, own files.

_LONGEST_WAIT_S = 30.0
_ATTEMPTS = 3
"""A submit, and a worker that prepares, wait in their own way, where it is seen (`worker.preparation.input_fetch`)."""


def data_places_of(house: AppParts) -> DataPlaces:
    """Return what finds data that is submitted from this home. Nothing is opened yet."""
    from stoker.devices.this_machine import host_name
    from stoker.jobs.request import DataPlaces

    def find_kept(text: str) -> Record:
        from stoker.store.prune import resolve

        return resolve(house.store, text)[0]

    return DataPlaces(
        host=host_name(house.settings.environment)[0],
        find_kept=find_kept,
        find_repository=lambda text: _find_repository(house, text),
        find_file=lambda repo, name: _find_file(house, repo, name),
    )


def open_hub(house: AppParts, transport: Transport, stop: DownloadStop, heed: Callable[[int], None]) -> Hub:
    """Return the hub, as this home's settings name it; `heed` is called for every byte that comes."""
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


def _find_repository(house: AppParts, text: str) -> FoundRepository:
    from stoker.jobs.request import FoundRepository
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


def _find_file(house: AppParts, text: str, name: str) -> str:
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


# What earlier trainings took of devices, and processes that several runs share.


def remembered(path: str, work: EstimatedWork) -> MeasuredPeakCorrection:
    """Return what the book at a path says of some work, under the version of torch that is installed beside us."""
    from stoker.devices.estimate.terms import CalibrationFile, keys_of
    from stoker.engine.recipe import MeasuredPeakCorrection

    torch = _torch_version()
    if not torch:
        return MeasuredPeakCorrection()
    return MeasuredPeakCorrection(names=keys_of(work, torch), correction=CalibrationFile(path).correction(work, torch))


@cache
def _torch_version() -> str:
    """Read it without importing torch."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return ""


def shared_runner(
    settings: AppSettings, *, environment: Mapping[str, str], contain: str | None, version: str, clock: Clock
) -> SharedProcessRunner | None:
    """Return what runs members of shared processes; nothing where every stage has a process of its own."""
    if sys.platform != "linux":
        return None
    from stoker.engine.runners.shared.shared_runner import SharedProcessRunner

    return SharedProcessRunner(
        lambda: shared_process_settings(settings, environment=environment, contain=contain, version=version),
        clock=clock,
    )


def shared_process_settings(
    settings: AppSettings, *, environment: Mapping[str, str], contain: str | None, version: str
) -> SharedProcessSettings:
    """Return what all shared processes of this home have in common."""
    from stoker.engine.runners.shared.shared_runner import SharedProcessSettings

    return SharedProcessSettings(
        folder=settings.shared_process_folder,
        home=settings.home,
        # It works for others, too: of this run's own it gets nothing, and its folder may not outlast the run.
        cwd=settings.home,
        environment=with_kernels_kept(environment, settings.kernels),
        contain=contain,
        version=version,
        linger_s=settings.shared_linger_s,
    )


# Python environments and inputs of jobs in this home.

_PART = 5
"""Of the disk, so small a part is for environments, unless STOKER_ENVS says how much."""
_LEAST_GIB = 10


def maker_of(settings: AppSettings, clock: Clock, *, user: OtherUser | None = None) -> Maker:
    """Return what finds and makes environments here, as a job's user if one is given. Nothing is looked at yet."""
    from stoker.store.environment_cache import EnvironmentCache
    from stoker.worker.environments.environment_builder import Maker

    return Maker(
        shelf=EnvironmentCache(settings.envs, clock=clock),
        user=user,
        keep_bytes=_keep_bytes(settings),
        environment=settings.environment,
        own_prefix=sys.prefix,
        clock=clock,
    )


def _keep_bytes(settings: AppSettings) -> int:
    from stoker.core.device import GIB
    from stoker.core.errors import Usage
    from stoker.core.text import parse_size
    from stoker.host.resources import existing_above

    said = settings.environment.get("STOKER_ENVS", "")
    if said:
        try:
            return parse_size(said)
        except ValueError as error:
            raise Usage(f"STOKER_ENVS: {error}", hint="a size such as 50G") from None
    disk = os.statvfs(existing_above(settings.home))
    return max(_LEAST_GIB * GIB, disk.f_blocks * disk.f_frsize // _PART)


def here_of(
    house: AppParts, *, may_read_in_place: bool, user: OtherUser | None = None, keeps_workspaces: bool = False
) -> tuple[LocalInputs, DataCache]:
    """Return what looks for jobs' needs in a home, and the shelf that their data lies on.

    `user` is the one that the job runs as whose needs are brought: environments are built as that user.
    """
    from stoker.devices.this_machine import host_name
    from stoker.worker.preparation.input_check import LocalInputs
    from stoker.worker.preparation.workspaces import DataCache, Workspaces

    settings = house.settings
    data = DataCache(os.path.join(settings.workspaces, ".data"), house.store, house.clock)
    here = LocalInputs(
        store=lambda: house.store,
        maker=maker_of(settings, house.clock, user=user),
        workspaces=Workspaces(settings.workspaces, settings.runs, keeps=keeps_workspaces),
        data=lambda: data,
        host=host_name(settings.environment)[0],
        may_read_in_place=may_read_in_place,
    )
    return here, data
