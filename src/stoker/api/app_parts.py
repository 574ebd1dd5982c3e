"""What `app` builds for the packages below it: where things are stored, and the objects of one process.

`AppSettings` is made from the environment by `app`. `AppParts` is the part of `app.App` that commands and `api` use; a
layer below can't name the class itself.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from stoker.core.errors import BadInput
from stoker.core.frozen import frozen
from stoker.core.text import parse_duration
from stoker.host.folders import HomeFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stoker.coordinator.http.server_options import ReadManifest, RunnableCoordinator, ServeOptions
    from stoker.core.capability import Capability
    from stoker.core.clock import Clock
    from stoker.core.device import Capacity, Device
    from stoker.core.pool import PoolBackend
    from stoker.devices.checkup import MachineSurvey, SmokeTestResult
    from stoker.devices.ledger.ledger import Ledger
    from stoker.engine.catalogue import Catalogue
    from stoker.engine.code_identity import CodeIdentity
    from stoker.engine.result_cache import Cache
    from stoker.engine.run_history import History
    from stoker.gang.gang_check import GangSelfTest
    from stoker.host.containment.mechanisms import ContainmentChoice
    from stoker.host.http.client import UnverifiedResponse
    from stoker.host.http.exchange import FleetIdentity, Transport
    from stoker.jobs.builder import JobBuilder
    from stoker.jobs.execution import ExecutionTools
    from stoker.launch.installer import Installer
    from stoker.launch.launchers import Launcher
    from stoker.launch.service import ServiceKind, SupervisedService
    from stoker.store.local_store import LocalStore
    from stoker.store.memo import Memo
    from stoker.store.objects.local import LocalObjects
    from stoker.transfer.download.receipts import Receipts
    from stoker.transfer.hub.listing import HubSettings
    from stoker.worker.worker_options import WorkOptions

_LINGER_S = 2.0
_INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"
_TRITON = "TRITON_CACHE_DIR"


@frozen
class AppSettings:
    """The folders of one process: its home, and where the command was typed."""

    home: str
    folder: str
    """Where the command was typed."""
    environment: Mapping[str, str]

    @property
    def store(self) -> str:
        return HomeFolder.STORE.below(self.home)

    @property
    def runs(self) -> str:
        return HomeFolder.RUNS.below(self.home)

    @property
    def state(self) -> str:
        return HomeFolder.STATE.below(self.home)

    @property
    def peaks(self) -> str:
        """What trainings took of devices, beside the estimates."""
        return os.path.join(self.state, "vram.json")

    @property
    def scratch(self) -> str:
        return HomeFolder.SCRATCH.below(self.home)

    @property
    def workspaces(self) -> str:
        return HomeFolder.WORKSPACES.below(self.home)

    @property
    def envs(self) -> str:
        return HomeFolder.ENVS.below(self.home)

    @property
    def kernels(self) -> str:
        return HomeFolder.KERNELS.below(self.home)

    @property
    def fleet(self) -> str:
        return HomeFolder.FLEET.below(self.home)

    @property
    def queue(self) -> str:
        """The address of its database, unless another one is named."""
        return f"sqlite:///{os.path.join(self.fleet, 'queue.db')}"

    @property
    def shared_process_folder(self) -> str:
        """Where processes that work for several runs are found: STOKER_RUNTIME, else where this session keeps such."""
        named = self.environment.get("STOKER_RUNTIME", "")
        if named:
            return os.path.abspath(os.path.join(self.folder, os.path.expanduser(named)))
        return self._in_session("stoker-companies")

    @property
    def ssh_folder(self) -> str:
        """Where connections to SSH hosts are kept open; a short path, as sockets need."""
        named = self.environment.get("STOKER_RUNTIME", "")
        return os.path.join(self.shared_process_folder, "ssh") if named else self._in_session("stoker-ssh")

    def _in_session(self, name: str) -> str:
        """Return a folder of this user that ends with the session, or with the machine."""
        session = self.environment.get("XDG_RUNTIME_DIR", "")
        if session and _is_own(session):
            return os.path.join(session, name)
        from tempfile import gettempdir

        return os.path.join(gettempdir(), f"{name}-{os.geteuid()}")

    @property
    def shared_linger_s(self) -> float:
        """How long such a process waits for others when it is empty: STOKER_COMPANY_LINGER, else two seconds."""
        text = self.environment.get("STOKER_COMPANY_LINGER", "")
        try:
            return parse_duration(text) if text else _LINGER_S
        except ValueError as error:
            hint = "a time, as 2s or 0.5: STOKER_COMPANY_LINGER=10s"
            raise BadInput(f"STOKER_COMPANY_LINGER={text!r} is no time: {error}", hint=hint) from None

    @property
    def out(self) -> str:
        return os.path.join(self.folder, "stoker-out")


def with_kernels_kept(environment: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return an environment in which torch and Triton keep what they compile below a folder, unless it says where.

    Left to itself torch keeps it in a temporary folder, which is gone after the machine's next start.
    """
    if environment.get(_INDUCTOR):
        # Triton's part goes below the folder that is named, or wherever it says itself.
        return dict(environment)
    triton = environment.get(_TRITON) or os.path.join(folder, "triton")
    return {**environment, _INDUCTOR: os.path.join(folder, "inductor"), _TRITON: triton}


def _is_own(folder: str) -> bool:
    """Return True if a folder is this user's; `su` and `sudo` leave another's in the environment."""
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def read_settings(environment: Mapping[str, str], folder: str) -> AppSettings:
    """Read the settings: STOKER_HOME, else the data folder that XDG names, else its default."""
    home = environment.get("STOKER_HOME", "")
    if not home:
        data = environment.get("XDG_DATA_HOME", "") or os.path.join(os.path.expanduser("~"), ".local", "share")
        home = os.path.join(data, "stoker")
    return AppSettings(
        home=os.path.abspath(os.path.join(folder, os.path.expanduser(home))), folder=folder, environment=environment
    )


class AppParts(Protocol):
    """Parts of one process, each made when it is first asked for."""

    @property
    def version(self) -> str: ...
    @property
    def settings(self) -> AppSettings: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def catalogue(self) -> Catalogue: ...
    @property
    def store(self) -> LocalStore: ...
    @property
    def memo(self) -> Memo:
        """The store's, before there is a store: nothing is made until it is asked."""

    @property
    def objects(self) -> LocalObjects: ...
    @property
    def cache(self) -> Cache: ...
    @property
    def code(self) -> CodeIdentity:
        """Which code stages are made of."""

    @property
    def history(self) -> History: ...
    @property
    def tools(self) -> ExecutionTools: ...
    @property
    def capacity(self) -> Capacity: ...
    @property
    def devices(self) -> tuple[Device, ...]:
        """Those that programs started from here may use. Finding them may take a moment, where there are any."""

    @property
    def ledger(self) -> Ledger:
        """Who holds how much of which device, on the whole machine."""

    @property
    def capability(self) -> Capability:
        """What this machine has, found out once."""

    def detect(self, *, asks_torch: bool = False, deep: bool = False) -> Capability:
        """Find out what this machine has; torch is asked where something speaks for a device, deep: in any case."""

    @property
    def recipes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of all recipes, and what is wrong with cookbooks."""

    @property
    def survey(self) -> MachineSurvey:
        """What Stoker needs of this machine beside its hardware."""

    def smoke(self, capability: Capability) -> tuple[SmokeTestResult, ...]:
        """Compute something small on the CPU and on each device of a snapshot."""

    def rehearse(self, ranks: int, capability: Capability) -> GangSelfTest:
        """Bring a gang of so many ranks up for show, of as many as there are GPUs for 0; what goes wrong is in it."""

    @property
    def containment(self) -> ContainmentChoice: ...

    @property
    def receipts(self) -> Receipts: ...

    def open_transport(
        self,
        longest_wait_s: float,
        *,
        direct: tuple[str, ...] = (),
        fleet: FleetIdentity | None = None,
        connect_s: float | None = None,
    ) -> Transport:
        """Return a way to reach servers, those in `direct` without a proxy. Caller closes.

        With a `fleet`, only what its CA signed is believed. Connecting may be given less time than the rest.
        """

    def ask_unproven(self, url: str, body: bytes, headers: dict[str, str]) -> UnverifiedResponse:
        """Send one request to a coordinator that has proven nothing yet: only to join a fleet."""

    def hub_settings(self, endpoint: str, *, offline: bool = False) -> HubSettings:
        """Where the hub is and its cache lies; what is given wins over the environment."""

    def serving(self, options: ServeOptions, read_manifest: ReadManifest) -> RunnableCoordinator:
        """Return a coordinator that can be run."""

    def work(self, options: WorkOptions, tell: Callable[[str, dict[str, Any]], None]) -> int:
        """Be a worker of a coordinator until there is a reason to end; give the exit code."""

    def launcher(self, backend: PoolBackend) -> Launcher:
        """Return what starts the workers of pools with this backend. Raises `BadInput` for one that is not there."""

    def service(
        self, kind: ServiceKind, words: Sequence[str], *, called: str = "", grace_s: float = 0.0, after: str = ""
    ) -> SupervisedService:
        """Return the service of `stoker KIND WORDS…` for this home; nothing is written."""

    def installer(self) -> Installer:
        """Return what installs services here."""

    def boot_trouble(self) -> str:
        """Return the command that lets services of this user start with the machine; empty: none is needed."""

    def contain_by(self, mechanism: str) -> None:
        """Keep programs' memory within bounds by exactly this mechanism."""

    def builder(self) -> JobBuilder:
        """Return the job builder for the folder where the command was given."""

    def entropy(self) -> int:
        """Return fresh random bits, for ids."""

    def make_state(self) -> None:
        """Make the folder for indexes and memos."""

    def at_home(self, home: str) -> AppParts:
        """Return the parts of a process with another home. Caller closes."""

    def close(self) -> None:
        """Close what was built."""
