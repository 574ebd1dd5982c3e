"""The house on one machine: `Assembly` makes each part when it is first asked for.

So a command pays only for what it uses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from stoker import __version__
from stoker.assembly.settings import Settings, read_settings, with_kernels_kept
from stoker.assembly.this_machine import ThisMachine
from stoker.host.imports import watch_imports
from stoker.model.clock import SystemClock

if TYPE_CHECKING:
    from stoker.assembly.serving import Serving
    from stoker.coordinator.service.options import ReadManifest, ServeOptions
    from stoker.hardware.survey import Survey
    from stoker.host.http.exchange import Transport
    from stoker.host.http.settings import FleetIdentity
    from stoker.host.http.unproven import UnprovenAnswer
    from stoker.host.other_user import OtherUser
    from stoker.host.zygote import Zygote
    from stoker.launch.installing import Installer
    from stoker.launch.services import Kind, Service
    from stoker.model.capability import Capability
    from stoker.plan.cache import Cache
    from stoker.plan.catalogue import Catalogue
    from stoker.plan.code_identity import CodeIdentity
    from stoker.plan.company.runner import CompanyRunner
    from stoker.plan.device.gate import DeviceGate
    from stoker.plan.footprints import Footprints
    from stoker.plan.history import History
    from stoker.plan.process_runner import ProcessRunner
    from stoker.plan.runner import StageRunner
    from stoker.plan.stage import Stage
    from stoker.store.download.receipt import Receipts
    from stoker.store.hub.settings import HubSettings
    from stoker.store.local import LocalStore
    from stoker.store.memo import Memo
    from stoker.store.objects.seam import ObjectStore
    from stoker.worker.execution import Tools
    from stoker.worker.keeper.options import WorkOptions
    from stoker.worker.ordering import Desk


class Assembly(ThisMachine):
    """Builds the parts of one process."""

    version = __version__

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.clock = SystemClock()
        self.run_as: OtherUser | None = None
        """As whom programs run, if not as ourselves; set before the first one does."""
        self.granted: Mapping[str, str] = {}
        """Of the environment: what such a program gets in any case."""
        self.shared_environment: Mapping[str, str] | None = None
        """What processes get that work for other runs, too; nothing: our own."""
        self.hidden: tuple[str, ...] = ()
        """What nobody may read in anything that a program prints."""
        self._first_forked: Stage | None = None
        watch_imports()

    @classmethod
    def here(cls) -> Assembly:
        """Build from this process's own environment."""
        return cls(read_settings(os.environ, os.getcwd()))

    def entropy(self) -> int:
        """Give fresh random bits, for ids."""
        return int.from_bytes(os.urandom(4))

    @cached_property
    def catalogue(self) -> Catalogue:
        from stoker.plan.catalogue import Catalogue, find_sources, read_sources

        index = os.path.join(self.settings.state, "cookbooks.json")
        named = read_sources(self.settings.environment.get("STOKER_COOKBOOKS", ""))
        if not named:
            return Catalogue(index)
        taken = {source.name for source in named}
        return Catalogue(index, [*named, *(one for one in find_sources(sys.path) if one.name not in taken)])

    @cached_property
    def store(self) -> LocalStore:
        self._unopened_store.open()
        return self._unopened_store

    @property
    def memo(self) -> Memo:
        return self._unopened_store.memo

    @cached_property
    def _unopened_store(self) -> LocalStore:
        from stoker.store.local import LocalStore

        return LocalStore(self.settings.store, clock=self.clock)

    @cached_property
    def objects(self) -> ObjectStore:
        from stoker.store.objects.local import LocalObjects

        return LocalObjects(self.store, clock=self.clock)

    @cached_property
    def cache(self) -> Cache:
        from stoker.plan.cache import Cache

        return Cache(self.store, code=self.code, clock=self.clock)

    @cached_property
    def code(self) -> CodeIdentity:
        """Which code stages are made of."""
        from stoker.plan.code_identity import CodeIdentity

        self.make_state()
        return CodeIdentity(os.path.join(self.settings.state, "code.json"), clock=self.clock)

    @cached_property
    def history(self) -> History:
        from stoker.plan.history import History

        self.make_state()
        return History(os.path.join(self.settings.state, "history.db"))

    @cached_property
    def footprints(self) -> Footprints:
        from stoker.plan.footprints import Footprints

        self.make_state()
        return Footprints(os.path.join(self.settings.state, "footprints.db"))

    @cached_property
    def process_runner(self) -> ProcessRunner:
        from stoker.plan.process_runner import ProcessRunner

        return ProcessRunner(
            self._start_zygote, lambda: self.containment, gang_child="stoker.assembly.gang_child:run_work"
        )

    @cached_property
    def tools(self) -> Tools:
        """What running a job needs."""
        from stoker.hardware.admission import memory_here
        from stoker.plan.admitting import MemoryGate
        from stoker.plan.engine import Engine
        from stoker.plan.lease import LeaseBook
        from stoker.worker.execution import Tools

        engine = Engine(
            cache=self.cache,
            history=self.history,
            leases=LeaseBook(self.store.places.leases, clock=self.clock),
            runner_for=self._runner_for,
            capacity=self.capacity,
            memory=MemoryGate(memory_here, self.footprints, self.settings.peaks),
            open_devices=self._open_devices,
            clock=self.clock,
            company_runner=lambda: self._company_runner,
            forked_runner=lambda: self.process_runner,
        )
        settings = self.settings
        return Tools(engine=engine, store=self.store, clock=self.clock, runs=settings.runs, scratch=settings.scratch)

    def open_transport(
        self,
        longest_wait_s: float,
        *,
        direct: tuple[str, ...] = (),
        fleet: FleetIdentity | None = None,
        connect_s: float | None = None,
        unheard_s: float | None = None,
    ) -> Transport:
        """Give a way to reach servers that waits for nothing longer than told. Whoever asks for it closes it.

        `direct` are hosts that no proxy is asked for. With a `fleet`, only what its CA signed is believed. Connecting
        may be given less time than the rest. Connections end when a computer was not heard of for `unheard_s`.
        """
        from stoker.host.http.client import Urllib3Transport
        from stoker.host.http.settings import read_http_settings
        from stoker.model.frozen import changed

        read = read_http_settings(self.settings.environment, user_agent=f"stoker/{self.version}")
        waits = {name: min(getattr(read, name), longest_wait_s) for name in ("connect_s", "head_s", "read_s")}
        waits["connect_s"] = min(waits["connect_s"], longest_wait_s if connect_s is None else connect_s)
        no_proxy = (*read.no_proxy, *direct)
        return Urllib3Transport(changed(read, **waits, unheard_s=unheard_s, no_proxy=no_proxy, fleet=fleet))

    def ask_unproven(self, url: str, body: bytes, headers: dict[str, str]) -> UnprovenAnswer:
        """Ask one question of a coordinator that has proven nothing yet: only for whoever joins a fleet."""
        from stoker.host.http.addresses import asked_directly
        from stoker.host.http.settings import read_http_settings
        from stoker.host.http.unproven import ask_unproven
        from stoker.model.frozen import changed

        read = read_http_settings(self.settings.environment, user_agent=f"stoker/{self.version}")
        settings = changed(read, no_proxy=(*read.no_proxy, *asked_directly(url)))
        return ask_unproven(url, body, settings=settings, headers=headers)

    @cached_property
    def receipts(self) -> Receipts:
        """What finished downloads left behind."""
        from stoker.store.download.receipt import Receipts

        return Receipts(os.path.join(self.settings.state, "receipts"))

    def hub_settings(self, endpoint: str, *, offline: bool = False) -> HubSettings:
        """Give where the hub is and its cache lies, as the environment says; an endpoint that is given wins."""
        from stoker.model.frozen import changed
        from stoker.store.hub.settings import read_hub_settings

        environment = self.settings.environment
        home = environment.get("HOME") or os.path.expanduser("~")
        read = read_hub_settings(environment, home=home, read_text=_read_text, endpoint=endpoint)
        is_offline = offline or environment.get("STOKER_OFFLINE", "").lower() in ("1", "on", "yes", "true")
        return changed(read, offline=True) if is_offline else read

    def serving(self, options: ServeOptions, read_manifest: ReadManifest) -> Serving:
        """Give a coordinator that can be run."""
        from stoker.assembly.serving import Serving

        return Serving(self.settings, options, clock=self.clock, version=self.version, read_manifest=read_manifest)

    def work(self, options: WorkOptions, tell: Callable[[str, dict[str, Any]], None]) -> int:
        """Be a worker of a coordinator until there is a reason to end; give the exit code."""
        from stoker.assembly.working import work

        return work(self, options, tell)

    def service(
        self, kind: Kind, words: Sequence[str], *, called: str = "", grace_s: float = 0.0, after: str = ""
    ) -> Service:
        """Give the service of `stoker KIND WORDS…` for this home; nothing is written."""
        from stoker.launch.services import make_service

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
        """Give what installs services here."""
        from stoker.launch.installing import Installer
        from stoker.launch.supervisors import supervisor_of

        settings = self.settings
        supervisor = supervisor_of(sys.platform, settings.environment, settings.home, user=os.getuid())
        return Installer(supervisor, self._asker, self.clock)

    def boot_trouble(self) -> str:
        """Give the command without which services of this user do not start with the machine; empty: none is needed."""
        from stoker.launch.supervisors import is_lingering

        is_fine = sys.platform != "linux" or is_lingering(self.settings.environment)
        return "" if is_fine else "loginctl enable-linger"

    def desk(self) -> Desk:
        """Give what takes orders, from the folder where this was started."""
        from stoker.assembly.data_places import data_places_of
        from stoker.assembly.surroundings import surroundings_of
        from stoker.worker.ordering import Desk

        return Desk(
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
        )

    def make_state(self) -> None:
        """Make the folder for indexes and memos."""
        from stoker.host.durable import translated

        with translated(self.settings.state):
            os.makedirs(self.settings.state, exist_ok=True)

    def close(self) -> None:
        """Let go of whatever was built."""
        built = vars(self)
        for name in ("process_runner", "meter", "footprints", "history", "cache", "store"):
            if name in built:
                built[name].close()

    def _runner_for(self, stage: Stage) -> StageRunner:
        if stage.inline:
            return self._inline_runner
        if stage.is_program:
            return self._program_runner
        # Whose cookbook it is decides what the zygote imports: others' libraries would only cost time.
        self._first_forked = self._first_forked or stage
        return self.process_runner

    @cached_property
    def _company_runner(self) -> CompanyRunner | None:
        from stoker.assembly.companies import company_runner

        return company_runner(
            self.settings,
            environment=self.shared_environment or self.settings.environment,
            contain=self.contained_by,
            version=self.version,
            clock=self.clock,
        )

    @cached_property
    def _inline_runner(self) -> StageRunner:
        from stoker.plan.runner import InlineRunner

        return InlineRunner()

    def _open_devices(self, wake: Callable[[], None]) -> DeviceGate:
        from stoker.plan.device.ledger_gate import LedgerGate, read_limit

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
        from stoker.hardware.detecting import detect
        from stoker.hardware.interpreters import ASKING_S
        from stoker.hardware.probes.devices import find_devices

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
        from stoker.model.errors import StokerError

        try:
            return tuple(entry.name for entry in self.catalogue.entries()), tuple(self.catalogue.troubles)
        except StokerError as error:
            return (), (str(error),)

    @cached_property
    def survey(self) -> Survey:
        """What Stoker needs of this machine beside its hardware."""
        from stoker.hardware.survey import survey
        from stoker.store.materialise import reflink
        from stoker.wire.finding import DEFAULT_PORT

        settings = self.settings
        places = {"store": settings.store, "runs": settings.runs, "scratch": settings.scratch}
        return survey(
            {**places, "Hugging Face cache": self.hub_settings("").cache},
            contain=lambda: self.containment,
            reflink=reflink,
            ports=(DEFAULT_PORT,),
        )

    @cached_property
    def _program_runner(self) -> StageRunner:
        from stoker.plan.program.launch import Surroundings
        from stoker.plan.program.runner import ProgramRunner

        around = Surroundings(
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
        from stoker.host.zygote import Zygote
        from stoker.plan.process_runner import PRELOAD

        used = [book for book in self.catalogue.loaded() if self._first_forked in book.stages]
        preload = tuple(dict.fromkeys(name for book in used for name in book.preload))
        return Zygote.start(
            sys.executable,
            (*PRELOAD, *preload),
            env=with_kernels_kept(self.settings.environment, self.settings.kernels),
            cwd=self.settings.folder,
            sys_path=sys.path,
        )


def _read_text(path: str) -> str | None:
    """Give a small file's text; nothing where there is none that can be read."""
    from stoker.host.durable import read_regular

    try:
        return read_regular(path, 64 * 1024).decode()
    except (OSError, ValueError):
        return None
