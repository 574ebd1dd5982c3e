"""A whole engine in a folder, made of the real parts: store, cache, history, leases, runners, executor."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import stoker
from stoker.authoring import PlanBuilder, Stage
from stoker.core.clock import Clock, SystemClock
from stoker.core.device import GIB, Backend, Capacity, Device, TriState, TriStateAnswer
from stoker.core.digests import Digest
from stoker.core.errors import StokerError
from stoker.core.jsontext import loads
from stoker.devices.admission import MachineMemory
from stoker.devices.ledger.ledger import Ledger
from stoker.devices.ledger.reservations import FakeMeter, Meter
from stoker.engine.code_identity import CodeIdentity
from stoker.engine.execution.executor import Executor
from stoker.engine.journal import StatusWriter, read_status
from stoker.engine.key_leases import KeyLeases
from stoker.engine.ledger_gate import LedgerGate
from stoker.engine.permits import MemoryGate
from stoker.engine.plan import Plan
from stoker.engine.preview import PlanPreview, preview
from stoker.engine.result_cache import Cache
from stoker.engine.run_history import Footprints, History
from stoker.engine.runners.process_runner import ProcessRunner
from stoker.engine.runners.program.launch import ProgramContext
from stoker.engine.runners.program.program_runner import ProgramRunner
from stoker.engine.runners.shared.shared_runner import SharedProcessRunner, SharedProcessSettings
from stoker.engine.runners.stage_runner import InlineRunner, RunFolders, StageRunner
from stoker.engine.types import Engine, NodeResult, RunOptions, RunResult
from stoker.host.containment.box import Containment
from stoker.host.containment.mechanisms import choose_mechanism
from stoker.host.durable import write_file
from stoker.host.zygote import Zygote
from stoker.store.local_store import LocalStore
from stoker.store.records import Record

FOUR_CORES = Capacity(cpu=4, memory_bytes=64 * 2**30)


TRAINER = Path(stoker.__file__).parent / "trainer"


@functools.cache
def containment() -> Containment:
    """What this machine has."""
    return choose_mechanism(None, environment=dict(os.environ))


@dataclass(frozen=True)
class Ran:
    """A run that is over: its result, and what its journal says."""

    result: RunResult
    events: list[dict[str, Any]]

    def __getitem__(self, name: str) -> NodeResult:
        return self.result.nodes[name]

    @property
    def endings(self) -> dict[str, str]:
        return {name: str(node.ending) for name, node in self.result.nodes.items()}

    @property
    def digests(self) -> dict[str, list[Digest]]:
        return {name: [one.ref.digest for one in node.products] for name, node in self.result.nodes.items()}

    def of_kind(self, kind: str, node: str | None = None) -> list[dict[str, Any]]:
        return [event for event in self.events if event["kind"] == kind and node in (None, event.get("node"))]


class Flight:
    """A run under way."""

    def __init__(self, executor: Executor, status: StatusWriter, path: str) -> None:
        self.executor = executor
        self._status = status
        self._path = path
        self._result: RunResult | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self.executor.run()
        finally:
            self._status.close()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What the journal says so far."""
        return [event for event in read_status(self._path) if event["kind"] == kind]

    def was_asked_to_stop(self, node: str) -> bool:
        """Return whether a node is in flight and has been asked to stop."""
        running = self.executor._in_flight._running.get(node)
        return running is not None and running.stop_cause is not None

    def land(self) -> Ran:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the run does not end"
        assert self._result is not None
        return Ran(self._result, list(read_status(self._path)))


class Lab:
    """Use as a context: it leaves nothing running."""

    def __init__(
        self,
        folder: Path,
        *,
        capacity: Capacity = FOUR_CORES,
        devices: tuple[str, ...] = ("a", "b"),
        clock: Clock | None = None,
        on_step: Callable[[str], None] | None = None,
        preload: tuple[str, ...] = (),
        store: Path | None = None,
        processes: ProcessRunner | None = None,
    ) -> None:
        """`processes` are shared with others, who close them."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.clock = clock or SystemClock()
        more: dict[str, Any] = {} if on_step is None else {"on_step": on_step}
        self.store = LocalStore(str(store or folder / "store"), clock=self.clock, **more)
        self.store.open()
        self.cache = Cache(self.store, code=CodeIdentity(str(folder / "code.json")), clock=self.clock)
        self.history = History(str(folder / "history.db"))
        self.leases = KeyLeases(self.store.places.leases, clock=self.clock)
        self.processes = processes or process_runner(folder, preload)
        self._has_own_processes = processes is None
        around = ProgramContext(
            environment=dict(os.environ), own_prefix=sys.prefix, trainer_folder=str(TRAINER), has_gpus=False
        )
        self.shared_processes = SharedProcessRunner(self.shared_process_settings, clock=self.clock)
        self.programs = ProgramRunner(around, containment, self.clock)
        self.capacity = capacity
        self.devices = tuple(card(uuid) for uuid in devices)
        self.use_meter(FakeMeter({device.uuid: device.total_bytes or 0 for device in self.devices}))
        self.vram_limit_percent: int | None = None
        self.measures_every_s = 0.02
        self.linger_s = 0.2
        self.patience_s = 60.0
        self.answer_s = 30.0
        self.has_shared_processes = True
        self.announced: list[str] = []
        self._preload = preload
        self._inline = InlineRunner()
        self.memory = MachineMemory(total_bytes=64 * 2**30, available_bytes=60 * 2**30)
        self.footprints = Footprints(str(folder / "footprints.db"))
        self._runs = len(list(folder.glob("status-*.jsonl")))
        self.executor: Executor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._has_own_processes:
            self.processes.close()
        self.history.close()
        self.footprints.close()
        self.cache.close()
        self.store.close()

    @property
    def engine(self) -> Engine:
        return Engine(
            cache=self.cache,
            history=self.history,
            leases=self.leases,
            runner_for=self.runner_for,
            capacity=self.capacity,
            memory=MemoryGate(lambda: self.memory, self.footprints),
            open_devices=self.open_devices,
            clock=self.clock,
            shared_runner=lambda: self.shared_processes if self.has_shared_processes else None,
            announce=lambda stages: self.announced.extend(stage.name for stage in stages),
            forked_runner=lambda: self.processes,
        )

    def shared_process_settings(self) -> SharedProcessSettings:
        return SharedProcessSettings(
            folder=str(self.folder / "run"),
            home=str(self.folder),
            cwd=str(self.folder),
            environment={"PATH": "/usr/bin:/bin", "LAB": str(self.folder)},
            contain=None,
            version="test",
            linger_s=self.linger_s,
            patience_s=self.patience_s,
            answer_s=self.answer_s,
        )

    def use_meter(self, meter: Meter) -> None:
        """Measure devices by this."""
        self.meter = meter
        self.ledger = Ledger(str(self.folder / "ledger"), clock=self.clock, meter=meter)

    def open_devices(self, wake: Callable[[], None]) -> LedgerGate:
        return LedgerGate(
            devices=lambda: self.devices,
            ledger=lambda: self.ledger,
            meter=lambda: self.meter,
            environment={},
            wake=wake,
            clock=self.clock,
            limit_percent=self.vram_limit_percent,
            measures_every_s=self.measures_every_s,
        )

    def runner_for(self, stage: Stage) -> StageRunner:
        return self._inline if stage.inline else self.programs if stage.is_program else self.processes

    def prepare(self, plan: Plan, **options: Any) -> tuple[Executor, StatusWriter]:
        self._runs += 1
        folders = RunFolders(
            run_id=f"run-{self._runs}",
            logs=str(self.folder / "logs"),
            metrics=str(self.folder / "metrics"),
            scratch=str(self.folder / "scratch"),
        )
        for made in (folders.logs, folders.metrics):
            os.makedirs(made, exist_ok=True)
        status = StatusWriter(str(self.folder / f"status-{self._runs}.jsonl"), source="test", clock=self.clock)
        options.setdefault("grace_s", 5.0)
        self.executor = Executor(plan, self.engine, status=status, folders=folders, options=RunOptions(**options))
        return self.executor, status

    def run(self, plan: Plan, **options: Any) -> Ran:
        executor, status = self.prepare(plan, **options)
        try:
            result = executor.run()
        finally:
            status.close()
        return Ran(result, list(read_status(str(self.folder / f"status-{self._runs}.jsonl"))))

    def start(self, plan: Plan, **options: Any) -> Flight:
        """Run in a thread of its own, so that the test can do something meanwhile."""
        executor, status = self.prepare(plan, **options)
        return Flight(executor, status, str(self.folder / f"status-{self._runs}.jsonl"))

    def preview(self, plan: Plan, **options: Any) -> PlanPreview:
        return preview(plan, cache=self.cache, history=self.history, **options)

    def again(self) -> Lab:
        """The same folder as a new process would see it: nothing remembered but what is on disk."""
        self.close()
        devices = tuple(device.uuid for device in self.devices)
        return Lab(self.folder, capacity=self.capacity, devices=devices, clock=self.clock, preload=self._preload)

    def value(self, ran: Ran, node: str) -> Any:
        """Read what a node of a finished run gave, as JSON."""
        (product,) = ran[node].products
        path = f"{product.folder}/value.json" if product.folder else "value.json"
        return loads(self.store.read_bytes(product.record, path))

    def staged(self) -> list[str]:
        """What is left in the staging folder."""
        # Walked, not globbed: what somebody removes meanwhile is no error.
        return sorted(name for _, folders, files in os.walk(self.store.places.staging) for name in (*folders, *files))

    def log(self, node: str) -> str:
        return (self.folder / "logs" / f"{node}.log").read_text()

    def record_path(self, key: Digest | None) -> Path:
        assert key is not None
        return Path(self.store.places.record(key))

    def blob_paths(self, key: Digest | None) -> list[Path]:
        assert key is not None
        record = self.store.peek(key)
        assert isinstance(record, Record)
        return [Path(self.store.places.blob(entry.sha256)) for entry in record.blobs()]

    def prune(self, *keys: Digest | None) -> None:
        """Let records become tombstones, as a prune does."""
        for key in keys:
            assert key is not None
            record = self.store.peek(key)
            assert isinstance(record, Record)
            write_file(self.store.places.record(key), record.without_bytes().to_bytes(), mode=0o444)
            for entry in record.blobs():
                Path(self.store.places.blob(entry.sha256)).unlink(missing_ok=True)


def process_runner(folder: Path, preload: tuple[str, ...] = ()) -> ProcessRunner:
    """Return a runner that forks stages from a process that has imported these modules."""

    def start_zygote() -> Zygote:
        return Zygote.start(
            sys.executable,
            ("stoker.engine.runners.stage_runner", "tests.unit.engine.stages", *preload),
            env={"PATH": "/usr/bin:/bin"},
            cwd=folder,
            sys_path=sys.path,
            linger_s=0.2,
        )

    return ProcessRunner(start_zygote, containment, gang_child="stoker.app.gang_child:run_work")


def card(uuid: str, total_bytes: int | None = 24 * GIB, **more: Any) -> Device:
    """A card that works."""
    yes = TriStateAnswer(verdict=TriState.YES)
    made: dict[str, Any] = {
        "backend": Backend.CUDA,
        "name": "Card",
        "total_bytes": total_bytes,
        "free_bytes": total_bytes,
    }
    return Device(uuid=uuid, **{**made, **more}, installed=yes, visible=yes, usable=yes)


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory where there is such a place: tests of many small runs need no disk to be right."""
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


def plan_of(stage: Stage, args: Any = None, **options: Any) -> Plan:
    """A plan of one node."""
    return PlanBuilder("one").start(stage, args, **options).finish()


def lines_of(ledger: Path | str) -> list[str]:
    path = Path(ledger)
    return path.read_text().splitlines() if path.exists() else []


def message_of(error: StokerError | None) -> str:
    return "" if error is None else str(error)


def faults_of(raised: Any) -> list[str]:
    """The texts of all faults of a raised `Faults`."""
    return [str(fault) for fault in raised.value.faults]


def by_where(raised: Any) -> Mapping[str, str]:
    return {fault.where: fault.message for fault in raised.value.faults}
