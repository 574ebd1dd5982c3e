"""What the commands need of the rest of the house. Somebody else builds it; here is only its shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from stoker.core.capability import Capability
from stoker.core.clock import Clock
from stoker.core.device import Capacity, Device
from stoker.engine.catalogue import Catalogue
from stoker.engine.code_identity import CodeIdentity
from stoker.engine.result_cache import Cache
from stoker.engine.run_history import History
from stoker.host.containment.box import Containment
from stoker.host.http.exchange import Transport
from stoker.jobs.execution import ExecutionTools
from stoker.store.local_store import LocalStore
from stoker.store.memo import Memo
from stoker.store.objects import ObjectStore
from stoker.transfer.download.receipts import Receipts
from stoker.transfer.hub.listing import HubSettings

if TYPE_CHECKING:
    from stoker.coordinator.http.server_options import ReadManifest, RunnableCoordinator, ServeOptions
    from stoker.devices.checkup import MachineSurvey, SmokeTestResult
    from stoker.devices.ledger.ledger import Ledger
    from stoker.gang.gang_check import GangSelfTest
    from stoker.host.http.client import UnverifiedResponse
    from stoker.host.http.exchange import FleetIdentity
    from stoker.jobs.build_context import JobCompiler
    from stoker.launch.installer import Installer
    from stoker.launch.service import ServiceKind, SupervisedService
    from stoker.worker.worker_options import WorkOptions


class CliSettings(Protocol):
    """Where things lie."""

    @property
    def home(self) -> str:
        """Where all that is Stoker's own lies."""

    @property
    def folder(self) -> str:
        """Where the command was given."""

    @property
    def state(self) -> str:
        """Indexes, memos and reports of crashes."""

    @property
    def peaks(self) -> str:
        """The book of what trainings took beside what was foretold."""

    @property
    def store(self) -> str:
        """What is kept."""

    @property
    def runs(self) -> str:
        """A folder for each job."""

    @property
    def envs(self) -> str:
        """Python environments that jobs run in."""

    @property
    def kernels(self) -> str:
        """What was compiled for devices."""

    @property
    def fleet(self) -> str:
        """What a coordinator of this home keeps."""

    @property
    def queue(self) -> str:
        """The address of its database, unless another one is named."""

    @property
    def out(self) -> str:
        """Where results are laid out as plain files."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that were set."""


class AppParts(Protocol):
    """Parts of one process, each made when it is first asked for."""

    @property
    def version(self) -> str: ...
    @property
    def settings(self) -> CliSettings: ...
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
    def objects(self) -> ObjectStore: ...
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
    def containment(self) -> Containment: ...

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
        """Return a way to reach servers, those in `direct` without a proxy; whoever asks for it closes it.

        With a `fleet`, only what its CA signed is believed. Connecting may be given less time than the rest.
        """

    def ask_unproven(self, url: str, body: bytes, headers: dict[str, str]) -> UnverifiedResponse:
        """Ask one question of a coordinator that has proven nothing yet: only for whoever joins a fleet."""

    def hub_settings(self, endpoint: str, *, offline: bool = False) -> HubSettings:
        """Where the hub is and its cache lies; what is given wins over the environment."""

    def serving(self, options: ServeOptions, read_manifest: ReadManifest) -> RunnableCoordinator:
        """Return a coordinator that can be run."""

    def work(self, options: WorkOptions, tell: Callable[[str, dict[str, Any]], None]) -> int:
        """Be a worker of a coordinator until there is a reason to end; give the exit code."""

    def service(
        self, kind: ServiceKind, words: Sequence[str], *, called: str = "", grace_s: float = 0.0, after: str = ""
    ) -> SupervisedService:
        """Return the service of `stoker KIND WORDS…` for this home; nothing is written."""

    def installer(self) -> Installer:
        """Return what installs services here."""

    def boot_trouble(self) -> str:
        """Give the command without which services of this user do not start with the machine; empty: none is needed."""

    def contain_by(self, mechanism: str) -> None:
        """Keep programs' memory within bounds by exactly this mechanism."""

    def desk(self) -> JobCompiler:
        """Return what takes orders, from the folder where the command was given."""

    def entropy(self) -> int:
        """Return fresh random bits, for ids."""

    def close(self) -> None:
        """Let go of whatever was built."""
