"""`App`: the objects of one process, each built when it is first used, so that a command pays only for what it uses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stoker import __version__
from stoker.api.app_parts import AppSettings, read_settings, with_kernels_kept
from stoker.core.clock import SystemClock
from stoker.host.folders import make_home, make_state
from stoker.host.import_watch import watch_imports

if TYPE_CHECKING:
    from stoker.api.app_parts import AppSettings
    from stoker.app.coordinator_app import CoordinatorProcess
    from stoker.coordinator.http.server_options import ReadManifest, ServeOptions
    from stoker.core.capability import Capability
    from stoker.core.device import Capacity, Device
    from stoker.core.pool import PoolBackend
    from stoker.devices.checkup import MachineSurvey, SmokeTestResult
    from stoker.devices.ledger.ledger import Guard, Ledger
    from stoker.devices.ledger.reservations import Meter
    from stoker.engine.catalogue import Catalogue
    from stoker.engine.code_identity import CodeIdentity
    from stoker.engine.device_gate import DeviceGate
    from stoker.engine.result_cache import Cache
    from stoker.engine.run_history import Footprints, History
    from stoker.engine.runners.process_runner import ProcessRunner
    from stoker.engine.runners.shared.shared_runner import SharedProcessRunner
    from stoker.engine.runners.stage_runner import StageRunner
    from stoker.engine.stage import Stage
    from stoker.gang.gang_check import GangSelfTest
    from stoker.host.command_runner import CommandRunner
    from stoker.host.containment.mechanisms import ContainmentChoice
    from stoker.host.http.client import UnverifiedResponse
    from stoker.host.http.exchange import FleetIdentity, Transport
    from stoker.host.users import OtherUser
    from stoker.host.zygote import Zygote
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


class App:
    """Builds the parts of one process."""

    version = __version__

    def __init__(self, settings: AppSettings) -> None:
        self.settings = settings
        self.clock = SystemClock()
        self.run_as: OtherUser | None = None
        """As whom programs run, if not as ourselves; set before the first one does."""
        self.granted: Mapping[str, str] = {}
        """Of the environment: what such a program gets in any case."""
        self.shared_environment: Mapping[str, str] | None = None
        """What processes get that work for other runs, too; nothing: our own."""
        self.hidden: tuple[str, ...] = ()
        """Secrets, masked in everything that a program prints."""
        self._first_forked: Stage | None = None
        self._announced: tuple[Stage, ...] = ()
        """Stages that may be forked."""
        watch_imports()

    @classmethod
    def here(cls) -> App:
        """Build from this process's own environment."""
        return cls(read_settings(os.environ, os.getcwd()))

    def at_home(self, home: str) -> App:
        """Return the parts of a process with another home. Caller closes."""
        environment = {**self.settings.environment, "STOKER_HOME": home}
        return App(AppSettings(home=home, folder=self.settings.folder, environment=environment))

    def entropy(self) -> int:
        """Return fresh random bits, for ids."""
        return int.from_bytes(os.urandom(4))

    @cached_property
    def catalogue(self) -> Catalogue:
        from stoker.engine.catalogue import Catalogue, find_sources, read_sources

        index = os.path.join(self.settings.state, "cookbooks.json")
        named = read_sources(self.settings.environment.get("STOKER_COOKBOOKS", ""))
        if not named:
            return Catalogue(index)
        taken = {source.name for source in named}
        return Catalogue(index, [*named, *(one for one in find_sources(sys.path) if one.name not in taken)])

    @cached_property
    def store(self) -> LocalStore:
        make_home(self.settings.home)
        self._unopened_store.open()
        return self._unopened_store

    @property
    def memo(self) -> Memo:
        return self._unopened_store.memo

    @cached_property
    def _unopened_store(self) -> LocalStore:
        from stoker.store.local_store import LocalStore

        return LocalStore(self.settings.store, clock=self.clock)

    @cached_property
    def objects(self) -> LocalObjects:
        from stoker.store.objects.local import LocalObjects

        return LocalObjects(self.store, clock=self.clock)

    @cached_property
    def cache(self) -> Cache:
        from stoker.engine.result_cache import Cache

        return Cache(self.store, code=self.code, clock=self.clock)

    @cached_property
    def code(self) -> CodeIdentity:
        """Which code stages are made of."""
        from stoker.engine.code_identity import CodeIdentity

        self.make_state()
        return CodeIdentity(os.path.join(self.settings.state, "code.json"), clock=self.clock)

    @cached_property
    def history(self) -> History:
        from stoker.engine.run_history import History

        self.make_state()
        return History(os.path.join(self.settings.state, "history.db"))

    @cached_property
    def footprints(self) -> Footprints:
        from stoker.engine.run_history import Footprints

        self.make_state()
        return Footprints(os.path.join(self.settings.state, "footprints.db"))

    @cached_property
    def process_runner(self) -> ProcessRunner:
        from stoker.engine.runners.process_runner import ProcessRunner

        return ProcessRunner(self._start_zygote, lambda: self.containment, gang_child="stoker.app.gang_child:run_work")

    @cached_property
    def tools(self) -> ExecutionTools:
        """What running a job needs."""
        from stoker.devices.admission import memory_here
        from stoker.engine.key_leases import KeyLeases
        from stoker.engine.permits import MemoryGate
        from stoker.engine.types import Engine
        from stoker.jobs.execution import ExecutionTools

        engine = Engine(
            cache=self.cache,
            history=self.history,
            leases=KeyLeases(self.store.places.leases, clock=self.clock),
            runner_for=self._runner_for,
            announce=self._announce,
            capacity=self.capacity,
            memory=MemoryGate(memory_here, self.footprints, self.settings.peaks),
            open_devices=self._open_devices,
            clock=self.clock,
            shared_runner=lambda: self._shared_runner,
            forked_runner=lambda: self.process_runner,
        )
        settings = self.settings
        return ExecutionTools(
            engine=engine, store=self.store, clock=self.clock, runs=settings.runs, scratch=settings.scratch
        )

    def open_transport(
        self,
        longest_wait_s: float,
        *,
        direct: tuple[str, ...] = (),
        fleet: FleetIdentity | None = None,
        connect_s: float | None = None,
        unheard_s: float | None = None,
    ) -> Transport:
        """Return a way to reach servers that waits no longer than `longest_wait_s` for anything. Caller closes.

        `direct` are hosts that no proxy is asked for. With a `fleet`, only what its CA signed is believed. Connecting
        may be given less time than the rest. Connections end when a computer was not heard of for `unheard_s`.
        """
        from stoker.core.frozen import changed
        from stoker.host.http.client import Urllib3Transport
        from stoker.host.http.exchange import read_http_settings

        read = read_http_settings(self.settings.environment, user_agent=f"stoker/{self.version}")
        waits = {name: min(getattr(read, name), longest_wait_s) for name in ("connect_s", "head_s", "read_s")}
        waits["connect_s"] = min(waits["connect_s"], longest_wait_s if connect_s is None else connect_s)
        no_proxy = (*read.no_proxy, *direct)
        return Urllib3Transport(changed(read, **waits, unheard_s=unheard_s, no_proxy=no_proxy, fleet=fleet))

    def ask_unproven(self, url: str, body: bytes, headers: dict[str, str]) -> UnverifiedResponse:
        """Send one request to a coordinator that has proven nothing yet: only to join a fleet."""
        from stoker.core.frozen import changed
        from stoker.host.http.client import ask_unproven
        from stoker.host.http.exchange import asked_directly, read_http_settings

        read = read_http_settings(self.settings.environment, user_agent=f"stoker/{self.version}")
        settings = changed(read, no_proxy=(*read.no_proxy, *asked_directly(url)))
        return ask_unproven(url, body, settings=settings, headers=headers)

    @cached_property
    def receipts(self) -> Receipts:
        """What finished downloads left behind."""
        from stoker.transfer.download.receipts import Receipts

        return Receipts(os.path.join(self.settings.state, "receipts"))

    def hub_settings(self, endpoint: str, *, offline: bool = False) -> HubSettings:
        """Return where the hub is and its cache lies, as the environment says; an endpoint that is given wins."""
        from stoker.core.frozen import changed
        from stoker.transfer.hub.listing import read_hub_settings

        environment = self.settings.environment
        home = environment.get("HOME") or os.path.expanduser("~")
        read = read_hub_settings(environment, home=home, read_text=_read_text, endpoint=endpoint)
        is_offline = offline or environment.get("STOKER_OFFLINE", "").lower() in ("1", "on", "yes", "true")
        return changed(read, offline=True) if is_offline else read

    def serving(self, options: ServeOptions, read_manifest: ReadManifest) -> CoordinatorProcess:
        """Return a coordinator that can be run."""
        from stoker.app.coordinator_app import CoordinatorProcess

        return CoordinatorProcess(
            self.settings, options, clock=self.clock, version=self.version, read_manifest=read_manifest
        )

    def work(self, options: WorkOptions, tell: Callable[[str, dict[str, Any]], None]) -> int:
        """Be a worker of a coordinator until there is a reason to end; give the exit code."""
        from stoker.app.worker_app import work

        return work(self, options, tell)

    def launcher(self, backend: PoolBackend) -> Launcher:
        """Return what starts the workers of pools with this backend."""
        from stoker.core.pool import PoolBackend
        from stoker.host.command_runner import SubprocessRunner
        from stoker.host.install import find_uv, uv_environment
        from stoker.launch.commands import HostCommands, public_environment
        from stoker.launch.hosts import HostLauncher
        from stoker.launch.kit import KitBuilder, Kits
        from stoker.launch.slurm import SlurmLauncher

        settings = self.settings
        if backend is PoolBackend.RAY:
            return self._ray_launcher()
        if backend is PoolBackend.KUBERNETES:
            return self._kubernetes_launcher()
        # A large site's queue is longer than a probe's output.
        runner = SubprocessRunner(public_environment(settings.environment), language=None, most_bytes=16 << 20)
        commands = HostCommands(runner, control_folder=settings.ssh_folder)
        folder = os.path.join(settings.state, "workers-launched")
        uv_runner = SubprocessRunner(uv_environment(settings.environment))
        uv = find_uv(sys.prefix, settings.environment)
        made = KitBuilder(os.path.join(settings.state, "kits"), uv, uv_runner, clock=self.clock)
        kits = Kits(commands, made, folder=os.path.join(settings.state, "kits-launched"), clock=self.clock)
        if backend in (PoolBackend.LOCAL, PoolBackend.SSH):
            return HostLauncher(commands, folder=folder, python=sys.executable, kits=kits)
        return SlurmLauncher(commands, folder=folder, python=sys.executable, kits=kits)

    def _ray_launcher(self) -> Launcher:
        from stoker.host.command_runner import SubprocessRunner
        from stoker.launch.commands import HostCommands, public_environment
        from stoker.launch.ray import RayLauncher, read_ray_token
        from stoker.launch.ray_actors import RayActors

        environment = self.settings.environment
        home = environment.get("HOME") or os.path.expanduser("~")
        # The token is for the cluster alone: no proxy gets it.
        transport = self.open_transport(30.0, direct=("*",), connect_s=5.0)
        commands = HostCommands(
            SubprocessRunner(public_environment(environment)), control_folder=self.settings.ssh_folder
        )

        def token() -> str:
            return read_ray_token(environment, home)

        return RayLauncher(transport, token, RayActors(commands, token, python=sys.executable), clock=self.clock)

    def _kubernetes_launcher(self) -> Launcher:
        from stoker.host.command_runner import SubprocessRunner
        from stoker.launch.commands import HostCommands
        from stoker.launch.kubernetes import KubernetesLauncher

        settings = self.settings
        # kubectl's credential plugins read secrets of the environment; pods inherit nothing of it.
        environment = {name: value for name, value in settings.environment.items() if not name.startswith("STOKER")}
        runner = SubprocessRunner(environment, most_bytes=16 << 20)
        return KubernetesLauncher(HostCommands(runner, control_folder=settings.ssh_folder))

    def service(
        self, kind: ServiceKind, words: Sequence[str], *, called: str = "", grace_s: float = 0.0, after: str = ""
    ) -> SupervisedService:
        """Return the service of `stoker KIND WORDS…` for this home; nothing is written."""
        from stoker.launch.service import make_service

        environment = self.settings.environment
        usual = {name: value for name, value in environment.items() if name != "STOKER_HOME"}
        return make_service(
            kind,
            words,
            python=sys.executable,
            home=self.settings.home,
            usual_home=read_settings(usual, self.settings.folder).home,
            environment=environment,
            called=called,
            grace_s=grace_s,
            after=after,
        )

    def installer(self) -> Installer:
        """Return what installs services here."""
        from stoker.launch.installer import Installer, supervisor_of

        settings = self.settings
        supervisor = supervisor_of(sys.platform, settings.environment, user=os.getuid())
        return Installer(supervisor, self._asker, self.clock)

    def boot_trouble(self) -> str:
        """Return the command that lets services of this user start with the machine; empty if none is needed."""
        from stoker.launch.installer import is_lingering

        is_fine = sys.platform != "linux" or is_lingering(self.settings.environment)
        return "" if is_fine else "loginctl enable-linger"

    def builder(self) -> JobBuilder:
        """Return the job builder for the folder where this was started."""
        from stoker.app.machine_parts import data_places_of, surroundings_of
        from stoker.jobs.builder import JobBuilder

        return JobBuilder(
            catalogue=self.catalogue,
            memo=self.store.memo,
            clock=self.clock,
            folder=self.settings.folder,
            version=self.version,
            entropy=self.entropy(),
            environment=self.settings.environment,
            capacity=self.capacity,
            count_gpus=lambda: len(self.devices),
            data=data_places_of(self),
            surroundings=surroundings_of(self),
            own_folders=(self.settings.home,),
        )

    def make_state(self) -> None:
        """Make the folder for indexes and memos."""
        make_state(self.settings.state)

    def close(self) -> None:
        """Close every object that was built."""
        built = vars(self)
        for name in ("process_runner", "meter", "footprints", "history", "cache", "store"):
            if name in built:
                built[name].close()

    @cached_property
    def capacity(self) -> Capacity:
        """What this machine may hand out."""
        from stoker.devices.admission import capacity_here

        return capacity_here()

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        """The devices that programs started from here may use."""
        from stoker.devices.this_machine import devices_here

        return devices_here(self.settings.environment, ask=lambda: self._asker)

    @cached_property
    def ledger(self) -> Ledger:
        """Who holds how much of which device, on the whole machine: STOKER_LEDGER, else the folder that all share."""
        from stoker.devices.ledger.ledger import DEFAULT_FOLDER, Ledger

        folder = self.settings.environment.get("STOKER_LEDGER", "") or DEFAULT_FOLDER
        folder = os.path.abspath(os.path.join(self.settings.folder, os.path.expanduser(folder)))
        return Ledger(folder, clock=self.clock, meter=self.meter)

    def guard(
        self, size: str = "", *, job: str, share: bool = False, count: int = 1, timeout_s: float | None = None
    ) -> Guard:
        """Return a block that holds room on a device: so much of it, or with no size all of it.

        Raises `InsufficientDeviceMemory` if it can never fit, `DeviceWaitTimeout`, and `ValueError` for what is not a
        size.
        """
        from stoker.core.text import parse_size
        from stoker.devices.ledger.reservations import WAIT_S, CandidateDevice, DeviceRequest

        candidates = tuple(one for one in map(CandidateDevice.of, self.devices) if one is not None)
        room_bytes = parse_size(size) if size else 0
        ask = DeviceRequest(job=job, devices=candidates, count=count, vram_bytes=room_bytes, may_share=share)
        return self.ledger.guard(ask, WAIT_S if timeout_s is None else timeout_s)

    @cached_property
    def meter(self) -> Meter:
        """What measures devices' memory now."""
        from stoker.devices.meters import open_meter

        return open_meter(self.devices, self.settings.environment)

    def smoke(self, capability: Capability) -> tuple[SmokeTestResult, ...]:
        """Compute something small on the CPU and on each device of a snapshot."""
        from stoker.devices.checkup import smoke

        return smoke(capability, self._asker)

    def rehearse(self, ranks: int, capability: Capability) -> GangSelfTest:
        """Bring a gang of so many ranks up for show, of as many as there are GPUs for 0; what goes wrong is in it."""
        from stoker.gang.gang_check import choose, rehearse
        from stoker.gang.owner import cuda_here

        devices = () if capability.is_fake or not capability.devices else cuda_here(self.settings.environment)
        return rehearse(choose(ranks or None, devices))

    @cached_property
    def _asker(self) -> CommandRunner:
        from stoker.host.command_runner import SubprocessRunner

        return SubprocessRunner(self.settings.environment)

    @cached_property
    def _pythons(self) -> tuple[str, ...]:
        """The interpreters of this machine that matter: the one that programs get here, and our own."""
        from stoker.host.interpreter import find_python

        settings = self.settings
        found = find_python("", folder=settings.folder, environment=settings.environment, own_prefix=sys.prefix)
        return tuple(dict.fromkeys(path for path in (found.path, sys.executable) if path))

    def contain_by(self, mechanism: str) -> None:
        """Use exactly this mechanism; call it before anything runs."""
        from stoker.host.containment.mechanisms import choose_mechanism

        self.__dict__["containment"] = choose_mechanism(mechanism, environment=self.settings.environment)
        self.__dict__["contained_by"] = mechanism

    @cached_property
    def contained_by(self) -> str | None:
        """The mechanism that was asked for; nothing: the strongest that works."""
        return self.settings.environment.get("STOKER_CONTAIN")

    @cached_property
    def containment(self) -> ContainmentChoice:
        """How this machine keeps a program's memory within bounds."""
        from stoker.host.containment.mechanisms import choose_mechanism

        return choose_mechanism(self.contained_by, environment=self.settings.environment)

    def _announce(self, stages: Sequence[Stage]) -> None:
        self._announced = tuple(dict.fromkeys((*self._announced, *stages)))

    def _runner_for(self, stage: Stage) -> StageRunner:
        if stage.inline:
            return self._inline_runner
        if stage.is_program:
            return self._program_runner
        # Whose cookbook it is decides what the zygote imports: others' libraries would only cost time.
        self._first_forked = self._first_forked or stage
        return self.process_runner

    @cached_property
    def _shared_runner(self) -> SharedProcessRunner | None:
        from stoker.app.machine_parts import shared_runner

        return shared_runner(
            self.settings,
            environment=self.shared_environment or self.settings.environment,
            contain=self.contained_by,
            version=self.version,
            clock=self.clock,
        )

    @cached_property
    def _inline_runner(self) -> StageRunner:
        from stoker.engine.runners.stage_runner import InlineRunner

        return InlineRunner()

    def _open_devices(self, wake: Callable[[], None]) -> DeviceGate:
        from stoker.engine.ledger_gate import LedgerGate, read_limit

        return LedgerGate(
            devices=lambda: self.devices,
            ledger=lambda: self.ledger,
            meter=lambda: self.meter,
            environment=self.settings.environment,
            wake=wake,
            clock=self.clock,
            limit_percent=read_limit(self.settings.environment.get("STOKER_VRAM_LIMIT", "")),
        )

    @cached_property
    def capability(self) -> Capability:
        """What this machine has, found out once."""
        return self.detect()

    def detect(self, *, asks_torch: bool = False, deep: bool = False) -> Capability:
        """Find out what this machine has.

        `asks_torch`: where something speaks for a device, torch has to work on it, which takes seconds. Deep: torch is
        asked in any case.
        """
        from stoker.devices.detection import ASKING_S, detect
        from stoker.devices.probes.inventory import find_devices

        environment, pythons = self.settings.environment, self._pythons
        python = next(iter(pythons), "") if asks_torch or deep else ""
        return detect(
            environment,
            find=lambda: find_devices(
                environment, ask=self._asker, python=python, wants_torch=deep, torch_limit_s=ASKING_S
            ),
            ask=self._asker,
            folder=self.settings.folder,
            pythons=pythons,
            recipes=self.recipes[0],
            deep=deep,
        )

    @cached_property
    def recipes(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of all recipes, and what is wrong with cookbooks: not to know them stops no snapshot."""
        from stoker.core.errors import StokerError

        try:
            return tuple(entry.name for entry in self.catalogue.entries()), tuple(self.catalogue.troubles)
        except StokerError as error:
            return (), (str(error),)

    @cached_property
    def survey(self) -> MachineSurvey:
        """What Stoker needs of this machine beside its hardware."""
        from stoker.devices.checkup import survey
        from stoker.host.writers import reflink
        from stoker.protocol.discovery import DEFAULT_PORT, living_coordinator

        settings = self.settings
        own = living_coordinator(settings.state)
        # The coordinator of this home may have the port.
        ports = () if own is not None and own.url.endswith(f":{DEFAULT_PORT}") else (DEFAULT_PORT,)
        places = {"store": settings.store, "runs": settings.runs, "scratch": settings.scratch}
        return survey(
            {**places, "Hugging Face cache": self.hub_settings("").cache},
            contain=lambda: self.containment,
            reflink=reflink,
            ports=ports,
        )

    @cached_property
    def _program_runner(self) -> StageRunner:
        from stoker.engine.runners.program.launch import ProgramContext
        from stoker.engine.runners.program.program_runner import ProgramRunner

        around = ProgramContext(
            environment=self.settings.environment,
            own_prefix=sys.prefix,
            trainer_folder=os.path.join(os.path.dirname(os.path.dirname(__file__)), "trainer"),
            has_gpus=bool(self.devices),
            user=self.run_as,
            granted=self.granted,
            hidden=self.hidden,
        )
        return ProgramRunner(around, lambda: self.containment, self.clock)

    def _start_zygote(self) -> Zygote:
        from stoker.engine.runners.process_runner import PRELOAD
        from stoker.host.zygote import Zygote

        used = [book for book in self.catalogue.loaded() if self._first_forked in book.stages]
        preload = tuple(dict.fromkeys(name for book in used for name in book.preload_for(self._announced)))
        return Zygote.start(
            sys.executable,
            (*PRELOAD, *preload),
            env=with_kernels_kept(self.settings.environment, self.settings.kernels),
            cwd=self.settings.folder,
            sys_path=sys.path,
        )


def _read_text(path: str) -> str | None:
    """Return a small file's text; nothing where there is none that can be read."""
    from stoker.host.durable import read_regular

    try:
        return read_regular(path, 64 * 1024).decode()
    except (OSError, ValueError):
        return None
