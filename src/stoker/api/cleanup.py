"""Every place that Stoker fills on this machine: its size, what of it may be removed, and why the rest stays.

Looking changes nothing. Only what can be made again or was abandoned is removed; models and plain results are listed
and never touched. Nothing of a live process is removed, and no link is followed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from stoker.api.app_parts import AppParts, AppSettings
from stoker.core.clock import Clock
from stoker.core.errors import BadInput, StokerError, Usage
from stoker.core.frozen import frozen
from stoker.core.text import counted, did_you_mean, format_size
from stoker.engine.key_leases import KeyLeases
from stoker.engine.scratch import forgotten
from stoker.host.folders import HomeFolder
from stoker.host.locks import FileLock, is_locked
from stoker.host.resources import folder_bytes
from stoker.jobs.upkeep import FORGOTTEN_S, CleanupResult, Rubbish, remove_all, sweep_uploads
from stoker.store.environment_cache import EnvironmentCache, EnvironmentPrunePlan, drop
from stoker.store.local_store import LocalStore
from stoker.store.objects.local import LocalObjects
from stoker.store.places import StorePaths, list_quarantine, names_in
from stoker.store.prune import PruneCandidate, PruneDecision, carry_out
from stoker.store.refs import refuse_if_damaged
from stoker.transfer.download.partial import PART, unfinished_of
from stoker.transfer.hub.hub_cache import HubCache, UnfinishedDownload
from stoker.transfer.trees.holdings import idle_incoming
from stoker.worker.preparation.workspaces import Workspaces

QUARANTINE_S = 30 * 86400.0
"""How long evidence of damage is kept."""

ABANDONED_S = 86400.0
"""How long an unfinished download of another program must have rested before it counts as abandoned."""

# In the folder of states, what is only a memory of something that lies elsewhere.
_MADE_AGAIN = ("cookbooks.json", "code.json", "seen.json")


def home_places(store: StorePaths, settings: AppSettings) -> dict[str, tuple[str, ...]]:
    """Return every place in a home by the name that is shown, with its paths: all of `HomeFolder` and `StorePaths`."""
    return {
        "results": (store.blobs, store.records),
        "staging": (store.staging,),
        "uploads": (store.uploads,),
        "incoming": (store.incoming,),
        "views": (store.views,),
        "names": (store.refs, store.pins, store.held, store.index, store.memo, store.leases),
        "quarantine": (store.quarantine,),
        "scratch": (settings.scratch,),
        "workspaces": (settings.workspaces,),
        "jobs": (settings.runs,),
        "state": (settings.state,),
        "environments": (settings.envs,),
        "kernels": (settings.kernels,),
        "fleet": (settings.fleet,),
    }


def place_bytes(paths: Iterable[str]) -> int:
    """Return the size of one place. A file that is also in another place counts there only if it is in the store."""
    return sum(folder_bytes(path, counts_shared=os.path.basename(path) != HomeFolder.WORKSPACES) for path in paths)


def environments_of(parts: AppParts) -> EnvironmentCache:
    """Return the environment cache of a home."""
    return EnvironmentCache(parts.settings.envs, clock=parts.clock)


def model_cache(parts: AppParts, note: Callable[[str], None]) -> str:
    """Return the folder of the model cache; "" and a note if the environment is invalid."""
    try:
        return parts.hub_settings("").cache
    except BadInput as error:
        note(f"note: skipping the model cache: {error}")
        return ""


@frozen
class RemovablePath:
    """One file or folder that may be removed."""

    path: str
    size_bytes: int


@frozen
class Area:
    """One place, and what of it may be removed."""

    name: str
    path: str
    size_bytes: int
    removable_bytes: int = 0
    goes: str = ""
    """What would be removed, in words."""
    stays: str = ""
    """Why the rest stays."""
    doomed: tuple[RemovablePath, ...] = ()
    """What would be removed, if removing it is all there is to do."""
    remove: Callable[[], CleanupResult] | None = None
    """Removes what of `doomed` may still be removed, if that may have changed since: it looks again before."""


@frozen
class Findings:
    """What was found out about the store before anything is cleared up."""

    candidates: tuple[PruneCandidate, ...]
    """Every record that has bytes."""
    decision: PruneDecision
    rubbish: Rubbish
    environments: EnvironmentPrunePlan
    young_bytes: int = 0
    """What of the decision is spared this time."""


@frozen
class CleanupOptions:
    """What is removed, too, however young it is."""

    quarantine: bool = False
    downloads: bool = False
    """Unfinished downloads of ours that are not under way."""


NO_MORE = CleanupOptions()


def look_around(
    store: LocalStore,
    settings: AppSettings,
    models: str,
    found: Findings,
    *,
    now_s: float,
    more: CleanupOptions = NO_MORE,
) -> list[Area]:
    """Measure every place and what of it may be removed; `models` is the cache shared with other programs, if known."""
    return [
        *_in_store(store, settings, found, now_s),
        _quarantine(store, now_s, all_of_it=more.quarantine),
        _scratch(settings.scratch, found.rubbish, now_s),
        _workspaces(settings, now_s),
        _runs(settings.runs),
        _state(settings.state, now_s),
        _environments(settings.envs, found.environments),
        _kernels(settings.kernels, now_s),
        Area(
            name="fleet",
            path=settings.fleet,
            size_bytes=folder_bytes(settings.fleet),
            stays="the coordinator's: `stoker store prune --fleet` removes its results",
        ),
        *(_downloads(models, now_s, all_of_ours=more.downloads) if models else ()),
        Area(
            name="plain results",
            path=settings.out,
            size_bytes=folder_bytes(settings.out),
            stays="your files: never removed",
        ),
    ]


def clear(  # noqa: PLR0913 - every place, and what it takes to clear it up
    store: LocalStore,
    objects: LocalObjects,
    areas: Iterable[Area],
    found: Findings,
    *,
    leases: KeyLeases,
    environments: EnvironmentCache,
    clock: Clock,
) -> CleanupResult:
    """Remove what may be removed of the given places, also if one path can't be.

    `CorruptBytes` if a pin or a ref can't be read: nothing is touched then.
    """
    refuse_if_damaged(store.places)
    areas = tuple(areas)
    names = {area.name for area in areas}
    freed_bytes = 0
    stuck: list[str] = []

    def count(more_bytes: int, more_stuck: Iterable[str]) -> None:
        nonlocal freed_bytes
        freed_bytes += more_bytes
        stuck.extend(more_stuck)

    for area in areas:
        cleared = remove_all(doomed.path for doomed in area.doomed) if area.remove is None else area.remove()
        count(cleared.freed_bytes, cleared.stuck)
    if "staging" in names:
        for key in found.rubbish.leases:
            leases.drop_dead(key)
    if "uploads" in names:
        count(sweep_uploads(store, objects), ())
    if "results" in names:
        swept = carry_out(store, found.decision, clock=clock)
        count(swept.freed_bytes, swept.stuck)
    if "environments" in names:
        dropped = drop(environments, found.environments, clock=clock)
        count(dropped.freed_bytes, dropped.stuck)
    return CleanupResult(freed_bytes=freed_bytes, stuck=tuple(stuck))


def choose_areas(areas: Sequence[Area], names: Sequence[str]) -> list[Area]:
    """Return the places of these names, all of them without names. Raises `Usage` for a name that no place has."""
    if not names:
        return list(areas)
    known = {area.name.replace(" ", "-"): area for area in areas}
    wanted = [name.replace(" ", "-") for name in names]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        hint = did_you_mean(unknown[0], known) or f"places: {', '.join(known)}"
        raise Usage(f"no place {unknown[0]!r}", hint=hint)
    return [area for name, area in known.items() if name in wanted]


def _in_store(store: LocalStore, settings: AppSettings, found: Findings, now_s: float) -> Iterator[Area]:
    places, decision, rubbish = store.places, found.decision, found.rubbish
    kept = [one for one in found.candidates if one.is_kept]
    kept_bytes = sum(dict(blob for one in kept for blob in one.blobs).values()) + sum(one.inline_bytes for one in kept)
    yield Area(
        name="results",
        path=places.blobs,
        size_bytes=max(0, folder_bytes(places.blobs) + folder_bytes(places.records) - kept_bytes),
        removable_bytes=decision.freed_bytes - found.young_bytes + rubbish.blob_bytes,
        goes=_listed(
            (len(decision.removals), "result", "results"),
            (rubbish.blobs, "blob that no result names", "blobs that no result names"),
        ),
        stays=(
            f"{format_size(found.young_bytes)} kept for an hour: may be in use"
            if found.young_bytes
            else "--max-size and --older-than remove more"
        ),
    )
    yield Area(
        name="kept results",
        path=places.blobs,
        size_bytes=kept_bytes,
        stays=f"{len(kept)} that {'is' if len(kept) == 1 else 'are'} pinned, put under a name or in use",
    )
    doomed = tuple(_measured(rubbish.staging))
    goes = _listed((len(doomed), "folder of a dead process", "folders of dead processes"))
    yield _area("staging", places.staging, doomed, goes=goes, stays="in use")
    stale = tuple(_measured(os.path.join(places.uploads, name) for name in rubbish.uploads))
    yield Area(
        name="uploads",
        path=places.uploads,
        size_bytes=folder_bytes(places.uploads),
        removable_bytes=sum(one.size_bytes for one in stale),
        goes=_listed((len(stale), "idle for 7 days", "idle for 7 days")),
        stays="uploads resume from there",
    )
    idle = tuple(RemovablePath(path=path, size_bytes=size) for path, size in idle_incoming(places, now_s=now_s).items())
    yield _area(
        "incoming",
        places.incoming,
        idle,
        goes=_listed((len(idle), "file idle for 7 days", "files idle for 7 days")),
        stays="transfers of trees resume from there",
        remove=_after_a_look(idle, lambda: idle_incoming(places, now_s=now_s)),
    )
    yield Area(name="views", path=places.views, size_bytes=folder_bytes(places.views), stays="links to kept results")
    yield Area(
        name="names",
        path=places.root,
        size_bytes=place_bytes(home_places(places, settings)["names"]),
        stays="refs, pins, the index and digests of known files",
    )


def _quarantine(store: LocalStore, now_s: float, *, all_of_it: bool) -> Area:
    old = [one for one in list_quarantine(store.places.quarantine) if all_of_it or now_s - one.at_s >= QUARANTINE_S]
    doomed = tuple(_measured(path for one in old for path in one.paths))
    goes = _listed((len(old), "damaged item", "damaged items"))
    return _area(
        "quarantine",
        store.places.quarantine,
        doomed,
        goes=goes,
        stays="evidence of damage: kept for 30 days or until --quarantine",
    )


def _scratch(root: str, rubbish: Rubbish, now_s: float) -> Area:
    doomed = tuple(_measured(rubbish.scratch))
    return _area(
        "scratch",
        root,
        doomed,
        goes=_listed((len(doomed), "folder unused for 30 days", "folders unused for 30 days")),
        stays="checkpoints: kept for 30 days, stages resume from them",
        remove=_after_a_look(doomed, lambda: forgotten(root, older_than_s=FORGOTTEN_S, now_s=now_s)),
    )


def _workspaces(settings: AppSettings, now_s: float) -> Area:
    """List what ended attempts left; a worker deletes it when it starts, unless it runs with --keep-workspace."""
    root = settings.workspaces

    def look() -> list[str]:
        left = [os.path.join(root, run) for run in Workspaces(root, settings.runs).left(now_s)]
        return [path for path in left if _age_s(path, now_s) >= FORGOTTEN_S]

    doomed = tuple(_measured(look()))
    goes = _listed((len(doomed), "of an attempt that ended 30 days ago", "of attempts that ended 30 days ago"))
    stays = "code and data of jobs: a worker removes what they no longer need"
    return _area("workspaces", root, doomed, goes=goes, stays=stays, remove=_after_a_look(doomed, look))


def _runs(root: str) -> Area:
    count = len(names_in(root))
    return Area(
        name="jobs",
        path=root,
        size_bytes=folder_bytes(root),
        stays=f"the history of {counted(count, 'job')}: `stoker jobs rm NAME` removes one",
    )


def _state(root: str, now_s: float) -> Area:
    indexes = [path for name in _MADE_AGAIN if os.path.lexists(path := os.path.join(root, name))]
    reports = [os.path.join(root, name) for name in names_in(root) if name.startswith("crash-")]
    old = [path for path in reports if _age_s(path, now_s) >= FORGOTTEN_S]
    goes = _listed(
        (len(indexes), "index that is made again", "indexes that are made again"),
        (len(old), "old report of a crash", "old reports of crashes"),
    )
    doomed = tuple(_measured([*indexes, *old]))
    return _area("state", root, doomed, goes=goes, stays="history, receipts and measurements")


def _environments(root: str, offered: EnvironmentPrunePlan) -> Area:
    return Area(
        name="environments",
        path=root,
        size_bytes=folder_bytes(root),
        removable_bytes=offered.freed_bytes,
        goes=_listed(
            (len(offered.decision.removals), "environment", "environments"),
            (len(offered.leftovers), "unfinished", "unfinished"),
        ),
        stays="--older-than and --max-envs remove more; those in use are kept",
    )


def _kernels(root: str, now_s: float) -> Area:
    doomed = tuple(_measured(_rested(root, now_s)))
    goes = _listed((len(doomed), "kernel from 30 days ago", "kernels from 30 days ago"))
    stays = "compiled for devices: kept for 30 days, so that jobs start faster"
    remove = _after_a_look(doomed, lambda: _rested(root, now_s))
    return _area("kernels", root, doomed, goes=goes, stays=stays, remove=remove)


def _rested(root: str, now_s: float) -> Iterator[str]:
    """Return the innermost folders in which nothing was written for long: what belongs together lies in one."""
    for folder, below, files in os.walk(root):
        if files and not below and all(_age_s(os.path.join(folder, name), now_s) >= FORGOTTEN_S for name in files):
            yield folder


def unfinished_bytes(cache: str) -> int:
    """Return the bytes of unfinished downloads, of any program, in a shared cache of models."""
    return sum(one.size_bytes for one in HubCache(cache).partials())


def _downloads(cache: str, now_s: float, *, all_of_ours: bool) -> Iterator[Area]:
    """List a cache that is shared with other programs: unfinished downloads may be removed, models never."""
    models = HubCache(cache)

    def may_go(one: UnfinishedDownload) -> bool:
        rested_s = ABANDONED_S if one.is_foreign else FORGOTTEN_S
        # A claim replaces a lock where there are none: only its age says whether it is in use.
        is_free = all_of_ours and not one.is_foreign and unfinished_of(os.path.basename(one.paths[0])).endswith(PART)
        return is_free or all(_age_s(path, now_s) >= rested_s for path in one.paths)

    def remove() -> CleanupResult:
        freed_bytes, stuck = 0, list[str]()
        for first in (one.paths[0] for one in left):
            with _held_from_writers(models.lock_of(first)) as is_held:
                # A download that was resumed meanwhile is younger now, has another name, or is whole.
                now = [one for one in models.partials() if is_held and one.paths[0] == first and may_go(one)]
                cleared = remove_all(path for one in now for path in one.paths)
                freed_bytes += cleared.freed_bytes
                stuck += cleared.stuck
        return CleanupResult(freed_bytes=freed_bytes, stuck=tuple(stuck))

    left = [one for one in models.partials() if may_go(one) and not is_locked(models.lock_of(one.paths[0]))]
    given_up = [one for one in left if one.is_foreign]
    ours = [one for one in left if not one.is_foreign]
    doomed = tuple(_measured(path for one in [*given_up, *ours] for path in one.paths))
    began_bytes = unfinished_bytes(cache)
    what_rests = "not in use" if all_of_ours else "unused for 30 days"
    yield Area(
        name="unfinished downloads",
        path=cache,
        size_bytes=began_bytes,
        removable_bytes=sum(one.size_bytes for one in doomed),
        goes=_listed(
            (len(given_up), "abandoned by another program", "abandoned by other programs"),
            (len(ours), what_rests, what_rests),
        ),
        stays="downloads resume from there" + ("" if all_of_ours else "; --downloads removes them"),
        doomed=doomed,
        remove=remove,
    )
    yield Area(
        name="models",
        path=cache,
        size_bytes=folder_bytes(cache) - began_bytes,
        stays="shared with other programs: never removed",
    )


@contextmanager
def _held_from_writers(lock_path: str) -> Iterator[bool]:
    """Hold the lock of a download, so that nobody resumes it meanwhile. Yields False if somebody has done so already.

    Where it can't be taken, such as on a file system without locks, it only says whether another process holds it.
    """
    lock = FileLock(lock_path, "remove an unfinished download", wait_s=0.0)
    try:
        lock.acquire()
    except StokerError:
        yield not is_locked(lock_path)
        return
    try:
        yield True
    finally:
        lock.release()


def _after_a_look(doomed: Sequence[RemovablePath], look: Callable[[], Iterable[str]]) -> Callable[[], CleanupResult]:
    """Return what removes those paths that `look` still finds."""

    def remove() -> CleanupResult:
        now = frozenset(look()) if doomed else frozenset()
        return remove_all(one.path for one in doomed if one.path in now)

    return remove


def _area(
    name: str,
    path: str,
    doomed: tuple[RemovablePath, ...],
    *,
    goes: str,
    stays: str,
    remove: Callable[[], CleanupResult] | None = None,
) -> Area:
    if os.path.islink(path):
        # Somebody put the folder elsewhere, or a job did: what is old there need not be ours.
        doomed, remove, goes, stays = (), None, "", f"a link to {os.path.realpath(path)}: not cleaned"
    size_bytes, removable_bytes = place_bytes((path,)), sum(one.size_bytes for one in doomed)
    return Area(
        name=name,
        path=path,
        size_bytes=size_bytes,
        removable_bytes=removable_bytes,
        goes=goes,
        stays=stays if size_bytes > removable_bytes else "",
        doomed=doomed,
        remove=remove,
    )


def _measured(paths: Iterable[str]) -> Iterator[RemovablePath]:
    for path in paths:
        if os.path.lexists(path):
            yield RemovablePath(path=path, size_bytes=folder_bytes(path))


def _listed(*counts: tuple[int, str, str]) -> str:
    return ", ".join(counted(count, one, many) for count, one, many in counts if count)


def _age_s(path: str, now_s: float) -> float:
    try:
        return now_s - os.lstat(path).st_mtime
    except OSError:
        return 0.0
