"""This machine, as its worker sees it: what is free, and whether a job could start. Decides nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from stoker.core.capability import Capability
from stoker.core.clock import Clock
from stoker.core.errors import BadInput, LocalFile, StokerError
from stoker.core.frozen import changed, fresh, frozen
from stoker.core.text import format_size
from stoker.devices.admission import Admission, MachineMemory, admit, memory_here
from stoker.devices.ledger.ledger import Ledger
from stoker.devices.ledger.reservations import CandidateDevice, DeviceRequest, Reservation
from stoker.engine.catalogue import Catalogue
from stoker.engine.device_gate import HIDDEN, device_variables, held_base
from stoker.engine.runners.program.sandbox import reachable_path
from stoker.host.background import RecurringTask
from stoker.host.durable import read_secret
from stoker.host.identity import ProcessIdentity, living_rows
from stoker.host.interpreter import find_python, is_bare_python
from stoker.host.resources import free_bytes
from stoker.host.users import OtherUser, may_execute, no_such_program
from stoker.jobs.program import RECIPE
from stoker.protocol.codec import VERSION
from stoker.protocol.job_checks import identity_fault
from stoker.protocol.lease_messages import Grant, WorkerMeasurements
from stoker.protocol.operator_messages import DoctorFinding, MachineReport
from stoker.protocol.view_messages import DoneView
from stoker.worker.preparation.input_check import python_beside, refusal_of
from stoker.worker.worker_state import StartRefusal

# The check before a start: a grant may be based on an older state of this machine. Pure.

LEAST_FREE_BYTES = 256 * 1024 * 1024
"""Free disk space below which a worker claims and starts no jobs."""


@frozen
class Precheck:
    """The present state of what a job needs."""

    memory: MachineMemory
    disk_free_bytes: int | None
    recipe_version: int | None
    """None: this machine has no recipe of that name."""
    recipe_trouble: str = ""
    missing_folder: str = ""
    missing_program: str = ""
    """Why its interpreter or program can't be found."""
    unaccepted_code: str = ""
    """Why its code is not accepted here."""
    secret_trouble: str = ""
    """Why not all of its secrets are known here."""
    device_trouble: str = ""


def why_not(grant: Grant, look: Precheck) -> StartRefusal | None:
    """Return why a job can't start here now; None if it can."""
    checks = (_identity, _recipe, _surroundings, _room)
    return next((found for found in (check(grant, look) for check in checks) if found is not None), None)


def _identity(grant: Grant, _look: Precheck) -> StartRefusal | None:
    """Refuse a job that does not match its id: the coordinator, or its database, was tampered with."""
    fault = identity_fault(grant.spec)
    if not fault:
        return None
    return StartRefusal(reason="identity", message=f"not the job that its id names: {fault}", lasts=True)


def _recipe(grant: Grant, look: Precheck) -> StartRefusal | None:
    if look.recipe_version is None:
        return StartRefusal(
            reason="recipe", message=look.recipe_trouble or f"there is no recipe {grant.spec.recipe} here"
        )
    if grant.spec.recipe != RECIPE and (grant.spec.code_tree or grant.spec.environment):
        # It would be imported by a process that runs as the worker.
        message = f"{grant.spec.recipe} runs the code of this machine, and the job brings its own"
        return StartRefusal(reason="recipe", message=message)
    if look.recipe_version != grant.spec.schema_version:
        versions = f"version {look.recipe_version} here, made for {grant.spec.schema_version}"
        return StartRefusal(reason="recipe_version", message=f"{grant.spec.recipe} is of {versions}")
    return None


def _surroundings(_grant: Grant, look: Precheck) -> StartRefusal | None:
    if look.unaccepted_code:
        return StartRefusal(reason="code", message=look.unaccepted_code, lasts=True)
    if look.missing_folder:
        return StartRefusal(reason="folder", message=f"there is no folder {look.missing_folder} here")
    if look.missing_program:
        return StartRefusal(reason="program", message=look.missing_program)
    if look.secret_trouble:
        return StartRefusal(reason="secrets", message=look.secret_trouble)
    return None


def _room(grant: Grant, look: Precheck) -> StartRefusal | None:
    if full := why_closed(look.disk_free_bytes):
        return StartRefusal(reason="disk", message=full)
    answer = admit(grant.ram_bytes, look.memory)
    if not isinstance(answer, Admission):
        return StartRefusal(reason="memory", message=answer.why)
    return StartRefusal(reason="device", message=look.device_trouble) if look.device_trouble else None


def why_closed(disk_free_bytes: int | None) -> str:
    """Return why a machine accepts no jobs at all; empty if it does."""
    if disk_free_bytes is None or disk_free_bytes >= LEAST_FREE_BYTES:
        return ""
    return f"its disk is full: {format_size(disk_free_bytes)} are free, {format_size(LEAST_FREE_BYTES)} are the least"


EVERY_S = 60.0
CONFIRM_S = 2.0
"""Between two detections, where the first one misses a device."""


class MachineOffer:
    """What this machine offers now. Replaced as a whole. Thread-safe."""

    def __init__(self, capability: Capability) -> None:
        self.capability = capability


@frozen
class DeviceChange:
    """What a detection changes in the offer."""

    gone: tuple[str, ...] = ()
    """UUIDs of devices that are no longer offered."""
    back: tuple[str, ...] = ()
    """UUIDs of devices that are offered again, or for the first time."""
    missed: frozenset[str] = frozenset()
    """Offered, and missed by this detection: the next one decides."""

    @property
    def is_any(self) -> bool:
        return bool(self.gone or self.back)


def compare_devices(offered: Capability, found: Capability, missed: frozenset[str]) -> DeviceChange:
    """Decide what changes; `missed` are the devices that the previous detection missed."""
    had = {device.uuid for device in offered.usable_devices}
    has = {device.uuid for device in found.usable_devices}
    if not (had - has) <= missed:
        return DeviceChange(missed=frozenset(had - has))
    return DeviceChange(gone=tuple(sorted(had - has)), back=tuple(sorted(has - had)))


class DeviceRedetection(RecurringTask):
    """Detects the devices until it is closed, and changes the offer.

    In a thread of its own, every minute and soon after an attempt on a device failed; the probes run in children of
    their own, as at the start. A device is withdrawn only if two detections in a row miss it: at one the driver may
    have been busy.
    """

    def __init__(
        self, offer: MachineOffer, detect: Callable[[], Capability], report: Callable[[DeviceChange], None]
    ) -> None:
        """`report` is called with every change, after the offer was replaced."""
        super().__init__("devices", first_s=EVERY_S, retry_s=EVERY_S)
        self._offer = offer
        self._detect = detect
        self._report = report
        self._missed: frozenset[str] = frozenset()

    def act(self) -> float:
        """Detect once; return the seconds until the next detection."""
        offered = self._offer.capability
        found = self._detect()
        change = compare_devices(offered, found, self._missed)
        self._missed = change.missed
        if change.missed:
            return CONFIRM_S
        if change.is_any:
            self._offer.capability = changed(found, hostname=offered.hostname)
            self._report(change)
        return EVERY_S


_NO_PROJECT = "/"
"""Where programs are looked for if the project's own folder is not here: no `.venv` there is the project's."""


@frozen
class LocalMachine:
    """What a worker needs of its machine."""

    offer: MachineOffer
    catalogue: Catalogue
    environment: Mapping[str, str]
    own_prefix: str
    """The prefix of our own interpreter."""
    home: str
    ledger: Callable[[], Ledger]
    users: tuple[OtherUser, ...] = ()
    """The users that programs of jobs run as; none: the worker's own user."""
    accepts: tuple[str, ...] = ()
    """Trees whose code alone is accepted here; none: any."""
    memory: Callable[[], MachineMemory] = memory_here
    disk: Callable[[str], int] = free_bytes

    @property
    def capability(self) -> Capability:
        """What it offers now."""
        return self.offer.capability

    def look(self, grant: Grant) -> Precheck:
        """Check what a job needs against this machine now."""
        version, trouble = self._recipe(grant.spec.recipe)
        is_program = grant.spec.recipe == RECIPE
        lacks_folder = is_program and not grant.spec.code_tree and not os.path.isdir(grant.spec.folder)
        return Precheck(
            memory=self.memory(),
            disk_free_bytes=self.disk_free_bytes(),
            recipe_version=version,
            recipe_trouble=trouble,
            missing_folder=(grant.spec.folder or "without a name") if lacks_folder else "",
            missing_program=self._program_trouble(grant) if is_program and not lacks_folder else "",
            unaccepted_code=refusal_of(grant, self.accepts),
            secret_trouble=self.secrets(grant).trouble,
            device_trouble=self._device_trouble(grant) if grant.devices else "",
        )

    def secrets(self, grant: Grant) -> FoundSecrets:
        """Return the values of a job's secrets, or why they are not known here."""
        if not grant.spec.secrets:
            return FoundSecrets()
        path = os.path.join(self.home, "state", FILE)
        return find_secrets(grant.spec.secrets, environment=self.child_environment(), path=path)

    def closed_python(self) -> str:
        """Return why programs that are started with `python` can't run as this machine's users; empty: they can."""
        return self._closed_to_users("python", "", _NO_PROJECT)

    def python_beside(self, grant: Grant) -> str:
        """Return the interpreter that lies beside a packed program where it was submitted, if that is here.

        Where only some code is accepted there is none: the submitter names that folder.
        """
        if not grant.spec.code_tree or grant.spec.environment or self.accepts:
            return ""
        return python_beside(
            grant.spec.args, grant.spec.folder, environment=self.environment, own_prefix=self.own_prefix
        )

    def measured(self, closed: Mapping[str, str]) -> WorkerMeasurements:
        """Return what is free now; `closed` has the reasons why nothing may be placed here."""
        reasons = {"": "; ".join(closed.values())} if closed else {}
        memory = self.memory()
        return WorkerMeasurements(
            ram_available_bytes=memory.available_bytes,
            ram_room_bytes=memory.room_bytes,
            disk_free_bytes=self.disk_free_bytes(),
            free_bytes=self._device_free_bytes(),
            closed=reasons,
        )

    def disk_free_bytes(self) -> int | None:
        """Return the free bytes where results and logs are written."""
        try:
            return self.disk(self.home)
        except StokerError:
            return None

    def variables(self, grant: Grant) -> dict[str, str]:
        """Return the variables that show an attempt's process the devices it was granted, and no others."""
        if not self.capability.devices:
            return {}
        granted = [device for device in self.capability.devices if device.uuid in grant.devices]
        return device_variables(granted, self.environment) if granted else dict(HIDDEN)

    def child_environment(self) -> dict[str, str]:
        """Return the environment of attempts: a copy of ours."""
        return dict(self.environment)

    def holdings(self, grant: Grant, child: ProcessIdentity) -> frozenset[str]:
        """Return the reservations on an attempt's devices that its process, or a descendant, owns."""
        entries = self._entries(grant)
        if not entries:
            return frozenset()
        parents = {row.pid: row.parent_pid for row in living_rows()}
        return frozenset(entry.id for entry in entries if _is_below(entry.owner.pid, child.pid, parents))

    def is_held(self, grant: Grant, holdings: frozenset[str]) -> bool:
        """Return True if one of these reservations remains: its owner, or one of its group, is alive."""
        return bool(holdings) and any(entry.id in holdings for entry in self._entries(grant))

    def _recipe(self, name: str) -> tuple[int | None, str]:
        try:
            return self.catalogue.find(name).version, ""
        except StokerError as error:
            return None, str(error)

    def _program_trouble(self, grant: Grant) -> str:
        argv, python = grant.spec.args.get("argv") or ("",), str(grant.spec.args.get("python") or "")
        word = str(argv[0])
        if grant.spec.environment and is_bare_python(word):
            # The environment is checked where it is made.
            return ""
        if self.users:
            beside = self.python_beside(grant)
            is_inside = bool(grant.spec.code_tree) and not beside and _is_relative(python)
            folder = _NO_PROJECT if grant.spec.code_tree else grant.spec.folder
            return "" if is_inside else self._closed_to_users(word, beside or python, folder)
        return "" if grant.spec.environment else self._missing_program(grant, word, python)

    def _closed_to_users(self, word: str, python: str, folder: str) -> str:
        """Return why a user that programs run as can't execute what a word means; empty: every user can.

        Any of them may get the job. The program is found as its start finds it (`host.interpreter.find_python`). A word
        that is found on PATH is not checked, except Python.
        """
        for user in self.users:
            # All that a program of another user gets of what an interpreter is found by.
            around = {"PATH": reachable_path(user, self.environment.get("PATH", os.defpath))}
            if python and not may_execute(user, self._path_of("python", python, folder, around)):
                return no_such_program(python, user)
            program = word if os.path.isabs(word) and "{" not in word else ""
            if is_bare_python(word):
                program = self._path_of(word, python, folder, around)
                if not program:
                    return f"there is no {word} that {user.name} can reach, and jobs run as {user.name} here"
            if program and not may_execute(user, program):
                return no_such_program(program, user)
        return ""

    def _path_of(self, word: str, python: str, folder: str, environment: Mapping[str, str]) -> str:
        try:
            return find_python(
                python, folder=folder, environment=environment, own_prefix=self.own_prefix, word=word
            ).path
        except StokerError:
            return ""

    def _missing_program(self, grant: Grant, word: str, python: str) -> str:
        if not python and not is_bare_python(word):
            return ""
        # Packed code runs in a folder that does not exist yet; its files are checked when the program starts.
        is_elsewhere = bool(grant.spec.code_tree) and not os.path.isdir(grant.spec.folder)
        folder = _NO_PROJECT if is_elsewhere else grant.spec.folder
        if is_elsewhere and _is_relative(python):
            return ""
        try:
            found = find_python(
                python, folder=folder, environment=self.environment, own_prefix=self.own_prefix, word=word
            )
        except StokerError as error:
            return str(error)
        return "" if found.path else found.why

    def _device_trouble(self, grant: Grant) -> str:
        """Reserve the memory in the ledger, and release it at once: the attempt's own process reserves it."""
        candidates = self._candidates(grant)
        missing = [uuid for uuid in grant.devices if uuid not in {one.uuid for one in candidates}]
        if missing:
            return f"this machine has no {', '.join(missing)} now"
        try:
            answer = self.ledger().reserve(room_for(grant, candidates))
            if isinstance(answer, Reservation):
                self.ledger().release(answer)
                return ""
        except StokerError as error:
            return str(error)
        return answer.why

    def _candidates(self, grant: Grant) -> tuple[CandidateDevice, ...]:
        devices = [device for device in self.capability.devices if device.uuid in grant.devices]
        return tuple(one for one in map(CandidateDevice.of, devices) if one is not None)

    def _entries(self, grant: Grant) -> list[Reservation]:
        candidates = self._candidates(grant)
        if not candidates:
            return []
        try:
            state = self.ledger().state(candidates)
        except StokerError:
            return []
        return [holder.entry for device in state.devices for holder in device.holders]

    def _device_free_bytes(self) -> dict[str, int]:
        if not self.capability.usable_devices:
            return {}
        found: dict[str, int] = {}
        with suppress(StokerError):
            candidates = tuple(
                one for one in map(CandidateDevice.of, self.capability.usable_devices) if one is not None
            )
            for device in self.ledger().state(candidates).devices:
                if device.left_bytes is not None:
                    found[device.device.uuid] = device.left_bytes
        return found


def room_for(grant: Grant, candidates: tuple[CandidateDevice, ...]) -> DeviceRequest:
    """Return the ledger request for a job before it starts: what was granted, on all of these devices."""
    return DeviceRequest(
        job=grant.spec.name,
        devices=candidates,
        count=len(candidates),
        vram_bytes=grant.vram_bytes,
        may_share=grant.is_shared,
        base=held_base(grant.base) if grant.base else "",
        base_bytes=min(grant.base_bytes, grant.vram_bytes) if grant.base else 0,
    )


def _is_relative(python: str) -> bool:
    return "/" in python and not os.path.isabs(os.path.expanduser(python))


def _is_below(pid: int, top: int, parents: Mapping[int, int]) -> bool:
    """Return True if a process is another one, or descends from it."""
    seen: set[int] = set()
    while pid != top and pid in parents and pid not in seen:
        seen.add(pid)
        pid = parents[pid]
    return pid == top


FIRST_S = 3.0
"""After the hello and the start of the first job."""
AGAIN_S = 60.0
"""The longest backoff after a report was not accepted; the first pauses are short: it may have come too early."""
DAY_S = 24 * 3600.0
_TRIES = 10


class MachineReporter(RecurringTask):
    """Sends reports about this machine to the coordinator: soon after the start, and once a day.

    In a thread of its own that delays nothing: if the coordinator has no reports API or is away, it retries later.
    """

    def __init__(
        self,
        send: Callable[[MachineReport], DoneView],
        *,
        name: str,
        version: str,
        look: Callable[[], tuple[DoctorFinding, ...]],
        clock: Clock,
    ) -> None:
        super().__init__("report", first_s=FIRST_S, retry_s=DAY_S)
        self._send = send
        self._name = name
        self._version = version
        self._look = look
        self._clock = clock
        self._tries = 0

    def act(self) -> float:
        """Report once; return the seconds until the next report."""
        try:
            self._send(
                MachineReport(
                    worker=self._name,
                    version=self._version,
                    protocol=VERSION,
                    findings=self._look(),
                    wall_s=self._clock.wall_s(),
                )
            )
        except StokerError:
            self._tries += 1
            if self._tries < _TRIES:
                return min(FIRST_S * 2.0**self._tries, AGAIN_S)
        self._tries = 0
        return DAY_S


FILE = "secrets.env"
SHORTEST = 4
"""A shorter value occurs in other words: it could not be masked in a job's output."""
_LARGEST_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUOTES = ("'", '"')


@frozen
class FoundSecrets:
    """The values of a job's secrets."""

    values: Mapping[str, str] = fresh(factory=dict)
    trouble: str = ""
    """Why not all of them are known; never contains a value."""

    def __repr__(self) -> str:
        return f"FoundSecrets({', '.join(self.values)}; {self.trouble})"


def find_secrets(names: Iterable[str], *, environment: Mapping[str, str], path: str) -> FoundSecrets:
    """Look up the values of secrets. Names come with a job; values never leave this machine.

        state/secrets.env       NAME=value, one a line; for its owner alone (0600)

    A value comes from the worker's own environment, else from that file. It is read when a job needs it, so that a file
    that was put right helps at once.
    """
    names = tuple(names)
    found = {name: environment[name] for name in names if environment.get(name)}
    lacking = [name for name in names if name not in found]
    if lacking:
        try:
            written = read_secrets(path)
        except BadInput as error:
            return FoundSecrets(trouble=error.message)
        found |= {name: written[name] for name in lacking if written.get(name)}
        lacking = [name for name in lacking if name not in found]
    if lacking:
        listed = ", ".join(lacking)
        return FoundSecrets(trouble=f"not set in this worker's environment: {listed} (nor in {path})")
    short = [name for name, value in found.items() if len(value) < SHORTEST]
    if short:
        return FoundSecrets(trouble=f"too short to be kept out of logs: {', '.join(short)}")
    return FoundSecrets(values=found)


def read_secrets(path: str) -> dict[str, str]:
    """Read the file; empty if there is none. Raises `BadInput` that names the line and no value."""
    try:
        text = read_secret(path, _LARGEST_BYTES).decode("utf-8-sig")
    except FileNotFoundError:
        return {}
    except LocalFile as error:
        raise BadInput(f"{error.message}: {error.hint}") from None
    except OSError as error:
        raise BadInput(f"{path} can't be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not a text in UTF-8") from None
    return dict(_entries(text, path))


def _entries(text: str, path: str) -> Iterable[tuple[str, str]]:
    seen: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.strip()
        if not plain or plain.startswith("#"):
            continue
        name, equals, value = plain.removeprefix("export ").partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not _NAME.fullmatch(name):
            raise BadInput(f"{path}, line {number}: not NAME=value")
        if name in seen:
            raise BadInput(f"{path}, line {number}: {name} stands in line {seen[name]} already")
        seen[name] = number
        if value[:1] in _QUOTES:
            if len(value) < 2 or value[-1] != value[0]:
                raise BadInput(f"{path}, line {number}: the quote of {name} does not end")
            value = value[1:-1]
        if "\0" in value:
            raise BadInput(f"{path}, line {number}: {name} holds a zero byte")
        yield name, value
