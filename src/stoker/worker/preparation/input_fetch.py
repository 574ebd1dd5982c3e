"""Fetch what a job needs to this machine: code first, then data and environment. Blocks; reports progress.

Everything received stays: the next attempt resumes what was cut, killed or stopped. Of several processes that fetch
the same, one fetches and the others wait.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from stoker.core.clock import Clock
from stoker.core.errors import (
    AuthRefused,
    BadInput,
    Cancelled,
    NoPermission,
    NoSpace,
    NotFound,
    NotOnServer,
    StokerError,
    Terminated,
    Unavailable,
)
from stoker.core.frozen import frozen
from stoker.core.job import JobInput
from stoker.core.text import counted, format_size
from stoker.protocol.lease_messages import Grant
from stoker.store.environment_cache import EnvironmentFailed, EnvironmentImpossible
from stoker.store.local_store import LocalStore
from stoker.store.memo import read_tree, unread_bytes
from stoker.store.tree_views import open_view
from stoker.transfer.download.types import DownloadStop
from stoker.transfer.hub.client import Hub
from stoker.transfer.trees.holdings import held_tree
from stoker.transfer.trees.tree_download import TreeFetchEstimate, receive_tree
from stoker.transfer.trees.tree_sources import TransferBackoff, TreeSourceFinder
from stoker.worker.environments.environment_builder import Maker
from stoker.worker.preparation.input_check import (
    CODE,
    InputStatus,
    LocalInputs,
    MissingInputs,
    fetch_to_shelf,
    is_repository,
    name_of,
    repository_name,
    what_is_missing,
    why_not_fetched,
)
from stoker.worker.preparation.prepare_child import (
    READY,
    REFUSED,
    EnvironmentActivity,
    InputActivity,
    PrepareLine,
    TreeActivity,
    note_rate,
)
from stoker.worker.preparation.workspaces import DataCache, take_in

_TELL_EVERY_S = 0.25
_PULSE_EVERY_S = 1.0
_PATIENCE_S = 120.0
"""How long a source may be away without a new byte."""
_PAUSE_S = 1.0
DATA, ENVIRONMENT, DISK, PREPARING = "data", "environment", "disk", "preparing"
"""Reasons of a refusal."""


@frozen
class InputFetcherContext:
    """What fetching works with."""

    here: LocalInputs
    store: LocalStore
    data: DataCache
    maker: Maker
    origins: TreeSourceFinder
    open_hub: Callable[[DownloadStop, Callable[[int], None]], Hub]
    """Opens the hub with a stop signal and a callback for received bytes."""
    stop: DownloadStop
    clock: Clock
    say: Callable[[PrepareLine], None]


class InputFetcher:
    """Fetches everything that one job needs."""

    def __init__(self, bench: InputFetcherContext, grant: Grant) -> None:
        self._bench = bench
        self._grant = grant
        self._turn = threading.Lock()
        self._count = 0
        self._reported_s = float("-inf")
        self._verified: list[str] = []

    def run(self) -> PrepareLine:
        """Fetch it; return the last line."""
        bench = self._bench
        try:
            missing = what_is_missing(self._grant, bench.here.look(self._grant))
            if missing.impossible:
                return _refused(ENVIRONMENT, missing.impossible, lasts=True)
            self._tell(f"needs {missing.words()}", is_line=True)
            return self._bring(missing)
        except (Terminated, Cancelled) as error:
            return _refused(PREPARING, error.message)
        except NoSpace as error:
            return _refused(DISK, error.message)
        except StokerError as error:
            return _refused(PREPARING, error.message)
        finally:
            with suppress(StokerError):
                bench.data.prune()

    def _bring(self, missing: MissingInputs) -> PrepareLine:
        if missing.code:
            try:
                self._receive(CODE, self._grant.spec.code_tree)
            except NotFound as error:
                return _refused(CODE, f"code not available: {error.message}", lasts=True)
        for needed in missing.inputs:
            refused = self._repository(needed) if is_repository(needed) else self._data(needed)
            if refused is not None:
                return refused
        if missing.environment:
            refused = self._environment()
            if refused is not None:
                return refused
        return PrepareLine(end=READY, count=self._count, verified=tuple(self._verified))

    def _data(self, needed: JobInput) -> PrepareLine | None:
        bench, name = self._bench, name_of(needed)
        standing = bench.here.look(self._grant, self._verified).inputs[needed.where]
        changed = ""
        if standing is InputStatus.UNSURE:
            if self._is_still_that(needed):
                self._verified.append(needed.where)
                return None
            changed = f"{needed.path} is no longer what was submitted, and "
        try:
            if bench.here.is_unread(needed) and not changed and self._take_in(needed):
                return None
            self._receive(name, needed.tree)
        except NotFound:
            return _refused(DATA, f"{changed}{name} not found in the fleet (tree {needed.tree[:12]})", lasts=True)
        return None

    def _is_still_that(self, needed: JobInput) -> bool:
        bench, name = self._bench, name_of(needed)
        amount = _Amount(f"reads {name}", unread_bytes(needed.path, memo=bench.store.memo), self._tell_amount)
        tree = read_tree(needed.path, needed.name, memo=bench.store.memo, clock=bench.clock, heed=self._heeding(amount))
        return tree.digest() == needed.tree

    def _take_in(self, needed: JobInput) -> bool:
        bench = self._bench
        amount = _Amount(f"copies {name_of(needed)}", needed.size_bytes, self._tell_amount)
        heed = self._heeding(amount)
        return take_in(needed.path, needed.name, needed.tree, bench.store, clock=bench.clock, heed=heed)

    def _receive(self, name: str, tree: str) -> None:
        bench = self._bench
        amount = _Amount(f"copies {name}", 0, self._tell_amount)

        def look_ahead(outlook: TreeFetchEstimate) -> None:
            amount.of_bytes = outlook.missing_bytes
            files = counted(outlook.missing_files, "file")
            self._tell(f"copies {name}: {files}, {format_size(outlook.missing_bytes)}", is_line=True)

        began_s = bench.clock.monotonic_s()
        with self._feeling(TreeActivity(bench.store, tree)):
            self._patiently(
                lambda: receive_tree(
                    bench.origins,
                    tree,
                    bench.store,
                    stop=bench.stop,
                    clock=bench.clock,
                    heed=self._heeding(amount),
                    on_outlook=look_ahead,
                )
            )
        seconds = bench.clock.monotonic_s() - began_s
        note_rate(bench.store, amount.at_bytes, seconds)
        self._tell(f"{name} is here: {format_size(amount.at_bytes)} came in {seconds:.1f} s", is_line=True)

    def _patiently(self, act: Callable[[], object]) -> None:
        """Retry `act` while its source is away; received bytes are kept. Times out without a new byte."""
        clock, count = self._bench.clock, self._count
        silent_since_s = clock.monotonic_s()
        pauses = TransferBackoff(first_s=_PAUSE_S, longest_s=_PAUSE_S)
        while True:
            try:
                act()
            except (AuthRefused, NoPermission, NoSpace, NotOnServer):
                raise
            except Unavailable as error:
                if self._count > count:
                    count, silent_since_s = self._count, clock.monotonic_s()
                if clock.monotonic_s() - silent_since_s > _PATIENCE_S:
                    raise
                self._tell(f"waits: {error.message}", is_line=True)
                self._bench.stop.sleep(pauses.failed(), clock)
            else:
                return

    def _repository(self, needed: JobInput) -> PrepareLine | None:
        bench, name = self._bench, name_of(needed)
        amount = _Amount(f"fetches {name}", needed.size_bytes, self._tell_amount)
        self._tell(f"fetches {needed.repo}", is_line=True)
        try:
            hub = bench.open_hub(bench.stop, self._heeding(amount))
            place = bench.data.place(repository_name(needed.repo))
            self._patiently(lambda: fetch_to_shelf(hub, needed.repo, place))
        except (NotOnServer, BadInput) as error:
            return _refused(DATA, why_not_fetched(needed.repo, error), lasts=True)
        return None

    def _environment(self) -> PrepareLine | None:
        bench, choices = self._bench, self._grant.spec.environment
        record = held_tree(bench.store, self._grant.spec.code_tree) if self._grant.spec.code_tree else None
        project = self._grant.spec.folder
        if record is not None:
            project = os.path.join(open_view(bench.store, record), self._grant.spec.code_folder)
        label = next((one.path for one in choices if one.path), ENVIRONMENT)
        with self._feeling(EnvironmentActivity(bench.maker, choices)):
            answer = bench.maker.make(
                choices,
                project=project,
                say=lambda line: self._say_line(label, line),
                is_stopped=self._is_stopped,
                is_ours=record is not None,
            )
        if isinstance(answer, EnvironmentImpossible):
            return _refused(ENVIRONMENT, answer.why, lasts=True)
        if isinstance(answer, EnvironmentFailed):
            bench.stop.check()
            return _refused(ENVIRONMENT, answer.why)
        return None

    @contextmanager
    def _feeling(self, pulse: InputActivity) -> Iterator[None]:
        """Count every second of the block in which there is activity, in any process."""
        over = threading.Event()

        def feel() -> None:
            while not over.wait(_PULSE_EVERY_S):
                if pulse.beats():
                    self._grow(1)
                    self._bench.say(PrepareLine(count=self._count))

        thread = threading.Thread(target=feel, name="stoker-pulse", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _is_stopped(self) -> bool:
        try:
            self._bench.stop.check()
        except StokerError:
            return True
        return False

    def _say_line(self, label: str, line: str) -> None:
        self._grow(1)
        says = line if line.startswith("builds ") or " builds " in line else f"builds {label}: {line}"
        self._tell(says, line=line)

    def _heeding(self, amount: _Amount) -> Callable[[int], None]:
        def heed(size_bytes: int) -> None:
            self._bench.stop.check()
            self._grow(size_bytes)
            amount.grow(size_bytes)

        return heed

    def _tell_amount(self, text: str) -> None:
        """Report the progress, at an interval."""
        now_s = self._bench.clock.monotonic_s()
        if now_s - self._reported_s >= _TELL_EVERY_S:
            self._reported_s = now_s
            self._tell(text)

    def _tell(self, says: str, *, line: str = "", is_line: bool = False) -> None:
        self._bench.say(PrepareLine(says=says, line=says if is_line else line, count=self._count))

    def _grow(self, by: int) -> None:
        with self._turn:
            self._count += by


class _Amount:
    """Progress of one transfer."""

    def __init__(self, what: str, of_bytes: int, tell: Callable[[str], None]) -> None:
        self.what = what
        self.of_bytes = of_bytes
        self.at_bytes = 0
        self._tell = tell
        self._turn = threading.Lock()

    def grow(self, size_bytes: int) -> None:
        with self._turn:
            self.at_bytes += size_bytes
        if self.of_bytes:
            self._tell(f"{self.what} {min(100, self.at_bytes * 100 // self.of_bytes)} %")
        else:
            self._tell(f"{self.what} {format_size(self.at_bytes)}")


def _refused(reason: str, message: str, *, lasts: bool = False) -> PrepareLine:
    return PrepareLine(end=REFUSED, reason=reason, message=message, lasts=lasts)
