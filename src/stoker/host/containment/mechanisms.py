"""Which mechanism limits the memory of programs here: the strongest that works, or exactly the one named.

A mechanism works if a trial succeeded: an installed tool or an existing folder proves nothing. A named mechanism is
never replaced by another one.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from typing import Any

from stoker.core.clock import Clock, SystemClock
from stoker.core.errors import ContainmentUnavailable, ProcessLost, Usage
from stoker.host.box_entry import ChildSetup, let_in
from stoker.host.containment.box import (
    AddressSpace,
    CleanupShell,
    ContainedGroup,
    Containment,
    ContainmentLimits,
    ContainmentReading,
    Mechanism,
    NoContainment,
    Watchdog,
    box_name,
    is_abandoned,
)
from stoker.host.containment.cgroups import END_WAIT_S, Cgroup1, Cgroup2, ControlGroup, ControlGroupBox, end_everybody
from stoker.host.identity import ProcessIdentity
from stoker.host.resources import group_at, own_group

AUTO = "auto"


class ContainmentChoice:
    """The mechanism in use, and why no stronger one is."""

    def __init__(
        self, first: Containment, *, tried: tuple[tuple[Mechanism, str], ...] = (), for_gpu: Containment | None = None
    ) -> None:
        self._first = first
        self._for_gpu = for_gpu or first
        self.mechanism = first.mechanism
        self.warning = first.warning
        self.tried = tried
        """Stronger mechanisms, each with the reason why it is not used."""

    def open(self, name: str, limits: ContainmentLimits, mark: str) -> ContainedGroup:
        """Make a box; for GPU work by the next mechanism if this one does not support it. The box names it."""
        return (self._for_gpu if limits.uses_gpu else self._first).open(name, limits, mark)


def choose_mechanism(
    wanted: str | None, *, environment: Mapping[str, str], proc: str = "/proc", clock: Clock | None = None
) -> ContainmentChoice:
    """Return the mechanism to use: the one named `wanted`, or with `None` or `auto` the strongest that works.

    Raises `ContainmentUnavailable` if the named one does not work, and `Usage` if the name is unknown.
    """
    probes = _probes(environment, proc, clock)
    if wanted is not None and wanted != AUTO:
        return ContainmentChoice(probes[_named(wanted)]())
    tried: list[tuple[Mechanism, str]] = []
    for mechanism, probe in probes.items():
        try:
            first = probe()
        except ContainmentUnavailable as error:
            tried.append((mechanism, str(error)))
            continue
        for_gpu = Watchdog(clock=clock) if mechanism is Mechanism.ADDRESS_SPACE else None
        return ContainmentChoice(first, tried=tuple(tried), for_gpu=for_gpu)
    return ContainmentChoice(NoContainment(clock=clock), tried=tuple(tried))


def _named(wanted: str) -> Mechanism:
    try:
        return Mechanism(wanted)
    except ValueError:
        names = ", ".join([AUTO, *Mechanism])
        raise Usage(f"unknown containment {wanted!r}", hint=f"one of {names}") from None


def _probes(
    environment: Mapping[str, str], proc: str, clock: Clock | None
) -> dict[Mechanism, Callable[[], Containment]]:
    """Return every mechanism with its trial, strongest first."""
    return {
        Mechanism.SYSTEMD: lambda: SystemdContainment.probe(environment, proc=proc, clock=clock),
        Mechanism.CGROUP2: lambda: Cgroup2.probe(proc, clock=clock),
        Mechanism.CGROUP1: lambda: Cgroup1.probe(proc, clock=clock),
        Mechanism.ADDRESS_SPACE: lambda: _on_linux(AddressSpace(clock=clock)),
        Mechanism.WATCHDOG: lambda: _on_linux(Watchdog(clock=clock)),
        Mechanism.BARE: lambda: NoContainment(clock=clock),
    }


def _on_linux(found: Containment) -> Containment:
    if sys.platform != "linux":
        raise ContainmentUnavailable(f"{found.mechanism} is for Linux only")
    return found


_NAME = "org.freedesktop.systemd1"
_PATH = "/org/freedesktop/systemd1"
_MANAGER = "org.freedesktop.systemd1.Manager"
_PROPERTIES = "org.freedesktop.DBus.Properties"

_CALL, _RETURN, _ERROR = 1, 2, 3
# A reply is required, and no service may be started to give it.
_FLAGS = 2
_FIELD_PATH, _FIELD_INTERFACE, _FIELD_MEMBER, _FIELD_REPLY, _FIELD_TO, _FIELD_SIGNATURE = 1, 2, 3, 5, 6, 8
_MOST_BYTES = 1 << 20


class UserBus:
    """A connection to the user's systemd. One thread at a time uses it. Everything raises `ContainmentUnavailable`.

    The system's own tools would work, at two processes per call; a box makes three calls. Supported: connect,
    authenticate, call a method, read its reply or error. Not supported: signals, descriptors, other features of a bus.
    """

    def __init__(self, connection: socket.socket, *, is_direct: bool) -> None:
        self._socket = connection
        self._is_direct = is_direct
        self._serial = 0

    @classmethod
    def connect(cls, environment: Mapping[str, str], *, timeout_s: float = 5.0) -> UserBus:
        """Connect to the first of its sockets that responds."""
        reasons = []
        for address, is_direct in _addresses(environment):
            try:
                return _opened(cls, address, is_direct=is_direct, timeout_s=timeout_s)
            except ContainmentUnavailable as error:
                reasons.append(str(error))
            except OSError as error:
                reasons.append(f"{_shown(address)}: {error.strerror or error}")
        raise ContainmentUnavailable(f"the user's systemd does not respond ({'; '.join(reasons) or 'no socket of it'})")

    def close(self) -> None:
        self._socket.close()

    def control_group(self) -> str:
        """Return the control group of the manager, as a path below where groups are mounted."""
        (found,) = self._ask(_PROPERTIES, "Get", "ss", (_MANAGER, "ControlGroup"))
        return str(found)

    def start_scope(self, unit: str, properties: Sequence[tuple[str, tuple[str, Any]]]) -> None:
        """Request a scope; it exists a moment after the reply."""
        self._ask(_MANAGER, "StartTransientUnit", "ssa(sv)a(sa(sv))", (unit, "fail", list(properties), []))

    def attach(self, unit: str, subgroup: str, pids: Sequence[int]) -> None:
        """Move processes into a group below a unit that manages its own groups."""
        self._ask(_MANAGER, "AttachProcessesToUnit", "ssau", (unit, subgroup, list(pids)))

    def stop_unit(self, unit: str) -> None:
        self._ask(_MANAGER, "StopUnit", "ss", (unit, "fail"))

    def say_hello(self) -> None:
        """Send `Hello`; only a bus with several clients requires it."""
        self._call("org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "Hello", "", ())

    def _ask(self, interface: str, member: str, signature: str, values: Sequence[Any]) -> tuple[Any, ...]:
        return self._call(_NAME, _PATH, interface, member, signature, values)

    def _call(
        self, to: str, path: str, interface: str, member: str, signature: str, values: Sequence[Any]
    ) -> tuple[Any, ...]:
        self._serial += 1
        fields: list[tuple[int, tuple[str, Any]]] = [
            (_FIELD_PATH, ("o", path)),
            (_FIELD_INTERFACE, ("s", interface)),
            (_FIELD_MEMBER, ("s", member)),
        ]
        if not self._is_direct:
            fields.append((_FIELD_TO, ("s", to)))
        if signature:
            fields.append((_FIELD_SIGNATURE, ("g", signature)))
        body = _Writer()
        for one, value in zip(_split(signature), values, strict=True):
            body.put(one, value)
        head = _Writer()
        for one, value in zip("yyyyuu", (ord("l"), _CALL, _FLAGS, 1, len(body.bytes), self._serial), strict=True):
            head.put(one, value)
        head.put("a(yv)", fields)
        head.pad(8)
        try:
            self._socket.sendall(bytes(head.bytes + body.bytes))
            return self._answer_to(self._serial, member)
        except OSError as error:
            raise ContainmentUnavailable(
                f"the user's systemd did not respond to {member}: {error.strerror or error}"
            ) from error

    def _answer_to(self, serial: int, member: str) -> tuple[Any, ...]:
        while True:
            kind, fields, values = self._receive()
            if fields.get(_FIELD_REPLY) != serial or kind not in {_RETURN, _ERROR}:
                # Signals that a bus sends without a request.
                continue
            if kind == _RETURN:
                return values
            response = values[0] if values else "no reason given"
            raise ContainmentUnavailable(f"the user's systemd refused {member}: {response}")

    def _receive(self) -> tuple[int, dict[int, Any], tuple[Any, ...]]:
        start = self._exactly(16)
        order = "<" if start[:1] == b"l" else ">"
        body_size, _, fields_size = struct.unpack_from(f"{order}III", start, 4)
        padded_size = fields_size + -fields_size % 8
        if padded_size + body_size > _MOST_BYTES:
            raise ContainmentUnavailable("a response of the user's systemd is too long")
        rest = self._exactly(padded_size + body_size)
        try:
            fields = dict(_Reader(start + rest[:fields_size], order, at=12).get("a(yv)"))
            body = _Reader(rest[padded_size:], order)
            values = tuple(body.get(one) for one in _split(fields.get(_FIELD_SIGNATURE, "")))
        except (LookupError, TypeError, ValueError, struct.error) as error:
            raise ContainmentUnavailable("a response of the user's systemd is malformed") from error
        return start[1], fields, values

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            chunk = self._socket.recv(size - len(found))
            if not chunk:
                raise ConnectionResetError(0, "connection closed")
            found += chunk
        return found


def _addresses(environment: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Return the sockets to try, and for each whether systemd itself is behind it and not a bus with other clients."""
    folder = environment.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    yield f"{folder}/systemd/private", True
    if addresses := environment.get("DBUS_SESSION_BUS_ADDRESS"):
        from urllib.parse import unquote  # noqa: PLC0415 - milliseconds at every start

        for address in addresses.split(";"):
            kind, _, text = address.partition(":")
            parts = dict(part.split("=", 1) for part in text.split(",") if "=" in part)
            if kind == "unix" and "path" in parts:
                yield unquote(parts["path"]), False
            elif kind == "unix" and "abstract" in parts:
                yield "\0" + unquote(parts["abstract"]), False
    yield f"{folder}/bus", False


def _shown(address: str) -> str:
    return address.replace("\0", "@")


def _opened(cls: type[UserBus], address: str, *, is_direct: bool, timeout_s: float) -> UserBus:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout_s)
        connection.connect(address)
        _prove_identity(connection)
        bus = cls(connection, is_direct=is_direct)
        if not is_direct:
            bus.say_hello()
            # A bus may respond while no client has that name.
            bus.control_group()
    except BaseException:
        connection.close()
        raise
    return bus


def _prove_identity(connection: socket.socket) -> None:
    who = str(os.getuid()).encode().hex()
    # In one write, as systemd's own library sends it: its other end overlooks a call that comes together with `BEGIN`.
    connection.sendall(f"\0AUTH EXTERNAL {who}\r\nBEGIN\r\n".encode())
    response = b""
    while not response.endswith(b"\r\n"):
        chunk = connection.recv(1024)
        if not chunk or len(response) > 4096:
            break
        response += chunk
    if not response.startswith(b"OK "):
        raise ContainmentUnavailable("the user's systemd does not accept this user")


_PLAIN = {"y": ("B", 1), "b": ("I", 4), "u": ("I", 4), "i": ("i", 4), "t": ("Q", 8), "x": ("q", 8), "d": ("d", 8)}
_ALIGNMENT = {"s": 4, "o": 4, "a": 4, "(": 8, "{": 8, "g": 1, "v": 1}


def _split(signature: str) -> list[str]:
    """Split a signature into those of single values."""
    parts, start, depth = [], 0, 0
    for at, letter in enumerate(signature):
        depth += (letter in "({") - (letter in ")}")
        if letter != "a" and depth == 0:
            parts.append(signature[start : at + 1])
            start = at + 1
    return parts


def _alignment(signature: str) -> int:
    return _PLAIN[signature][1] if signature in _PLAIN else _ALIGNMENT[signature[0]]


class _Writer:
    """Encodes values as bytes, little-endian."""

    def __init__(self) -> None:
        self.bytes = bytearray()

    def pad(self, alignment: int) -> None:
        self.bytes += bytes(-len(self.bytes) % alignment)

    def put(self, signature: str, value: Any) -> None:
        self.pad(_alignment(signature))
        if signature in _PLAIN:
            self.bytes += struct.pack("<" + _PLAIN[signature][0], value)
        elif signature in "so":
            text = value.encode()
            self.bytes += struct.pack("<I", len(text)) + text + b"\0"
        elif signature == "g":
            self.bytes += bytes([len(value)]) + value.encode() + b"\0"
        elif signature == "v":
            self.put("g", value[0])
            self.put(*value)
        elif signature[0] == "(":
            for one, part in zip(_split(signature[1:-1]), value, strict=True):
                self.put(one, part)
        else:
            self._put_array(signature[1:], value)

    def _put_array(self, signature: str, values: Sequence[Any]) -> None:
        at = len(self.bytes)
        self.bytes += bytes(4)
        # The padding between the length and the first value does not count.
        self.pad(_alignment(signature))
        start = len(self.bytes)
        for value in values:
            self.put(signature, value)
        struct.pack_into("<I", self.bytes, at, len(self.bytes) - start)


class _Reader:
    """Decodes bytes into values; a value inside a variant is returned without it."""

    def __init__(self, data: bytes, order: str, *, at: int = 0) -> None:
        self._data = data
        self._order = order
        self._at = at

    def get(self, signature: str) -> Any:
        self._at += -self._at % _alignment(signature)
        if signature in _PLAIN:
            letter, size = _PLAIN[signature]
            self._at += size
            return struct.unpack_from(self._order + letter, self._data, self._at - size)[0]
        if signature in "sog":
            return self._text(self.get("y" if signature == "g" else "u"))
        if signature == "v":
            return self.get(self.get("g"))
        if signature[0] in "({":
            return tuple(self.get(one) for one in _split(signature[1:-1]))
        return self._array(signature[1:])

    def _text(self, size: int) -> str:
        self._at += size + 1
        return self._data[self._at - size - 1 : self._at - 1].decode(errors="replace")

    def _array(self, signature: str) -> list[Any]:
        size = self.get("u")
        self._at += -self._at % _alignment(signature)
        end = self._at + size
        found = []
        while self._at < end:
            before = self._at
            found.append(self.get(signature))
            if self._at == before:
                message = "an array of empty values has no end"
                raise ValueError(message)
        return found


_SUFFIX = ".scope"
_KEEPER_ROOM_BYTES = 16 << 20
_PAUSE_S = 0.001


class SystemdContainment:
    """Boxes from the user's systemd."""

    mechanism = Mechanism.SYSTEMD
    warning = ""

    def __init__(self, environment: Mapping[str, str], *, proc: str = "/proc", clock: Clock | None = None) -> None:
        self._environment = environment
        self._proc = proc
        self._clock = clock or SystemClock()

    @classmethod
    def probe(
        cls, environment: Mapping[str, str], *, proc: str = "/proc", clock: Clock | None = None
    ) -> SystemdContainment:
        """Connect, check that it can delegate memory control, and try it. Raises `ContainmentUnavailable`."""
        with closing(UserBus.connect(environment)) as bus:
            folder = group_at(bus.control_group(), proc)
        if folder is None:
            raise ContainmentUnavailable("the control groups of the user's systemd are not visible from here")
        if "memory" not in ControlGroup(folder).read("cgroup.controllers").split():
            raise ContainmentUnavailable(
                "the user's systemd has no memory control to delegate (cgroup version 1 holds it?)"
            )
        found = cls(environment, proc=proc, clock=clock)
        found.open("probe", ContainmentLimits(memory_bytes=1 << 20), "").close()
        return found

    def open(self, name: str, limits: ContainmentLimits, mark: str) -> SystemdScope:
        unit = box_name(name, mark) + _SUFFIX
        with ExitStack() as undoing:
            bus = UserBus.connect(self._environment)
            undoing.callback(bus.close)
            shell = CleanupShell()
            undoing.callback(shell.dismiss)
            bus.start_scope(unit, _properties(limits, shell.pid))
            folder = self._scope_folder(unit, shell.pid)
            undoing.pop_all()
        box = SystemdScope(unit, bus=bus, shell=shell, scope=ControlGroup(folder), clock=self._clock)
        try:
            box.make(limits)
        except ContainmentUnavailable:
            box.close()
            raise
        self._sweep_beside(folder)
        return box

    def _scope_folder(self, unit: str, keeper_pid: int) -> str:
        """Wait until the cleanup shell is in its scope, and return the scope's folder."""
        deadline_s = self._clock.monotonic_s() + END_WAIT_S
        while self._clock.monotonic_s() < deadline_s:
            folder = own_group("", 2, self._proc, of=keeper_pid)
            if folder is not None and os.path.basename(folder) == unit:
                return folder
            self._clock.sleep(_PAUSE_S)
        raise ContainmentUnavailable(
            f"the user's systemd accepted {unit}, but did not create it", hint=f"systemctl --user status {unit}"
        )

    def _sweep_beside(self, folder: str) -> None:
        """Kill processes left in scopes whose opener is gone; systemd removes an empty scope itself."""
        place = os.path.dirname(folder)
        for name in sorted(os.listdir(place)):
            if name.endswith(_SUFFIX) and is_abandoned(name.removesuffix(_SUFFIX)):
                with suppress(ProcessLost):
                    end_everybody((ControlGroup(os.path.join(place, name)),), clock=self._clock)


class SystemdScope:
    """One attempt's scope."""

    mechanism = Mechanism.SYSTEMD

    def __init__(self, unit: str, *, bus: UserBus, shell: CleanupShell, scope: ControlGroup, clock: Clock) -> None:
        self.name = unit
        self._bus = bus
        self._shell = shell
        self._scope = scope
        self._leaf = ControlGroup(os.path.join(scope.folder, unit.removesuffix(_SUFFIX)), clock=clock)
        self._inner = ControlGroupBox(self.mechanism, (self._leaf,), Cgroup2.files, clock=clock)
        self._clock = clock
        self._ours, self._theirs = socket.socketpair()
        self.entry = ChildSetup(gate_fd=self._theirs.fileno())

    def make(self, limits: ContainmentLimits) -> None:
        """Make the group for the attempt within the scope. Raises `ContainmentUnavailable`."""
        aside = ControlGroup(os.path.join(self._scope.folder, "keeper"))
        try:
            aside.make()
            # A group that delegates memory control has no processes of its own.
            aside.write("cgroup.procs", self._shell.pid)
            if limits.memory_bytes is not None:
                self._scope.write("cgroup.subtree_control", "+memory")
        except OSError as error:
            raise ContainmentUnavailable(
                f"the user's systemd delegates no memory control: {error.strerror}: "
                f"{error.filename or self._scope.folder}"
            ) from error
        self._inner.make(limits)
        self._shell.guard_groups([self._leaf.folder])

    def took_in(self, identity: ProcessIdentity) -> None:
        # The child has its own copy by now; with ours open it would not notice our end.
        self._theirs.close()
        self._bus.attach(self.name, f"/{self._inner.name}", [identity.pid])
        let_in(self._ours)

    def read(self) -> ContainmentReading:
        return self._inner.read()

    def members(self) -> tuple[int, ...]:
        return self._inner.members()

    def kill_all(self) -> None:
        self._inner.kill_all()

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()
        self._inner.close()
        self._shell.dismiss()
        with suppress(ContainmentUnavailable):
            # It would notice by itself, some 15 ms later, that the scope is empty. Perhaps it has.
            self._bus.stop_unit(self.name)
        self._see_unit_gone()
        self._bus.close()

    def _see_unit_gone(self) -> None:
        deadline_s = self._clock.monotonic_s() + END_WAIT_S
        while os.path.isdir(self._scope.folder):
            if self._clock.monotonic_s() >= deadline_s:
                raise ProcessLost(f"systemd keeps the unit {self.name}", hint=f"systemctl --user stop {self.name}")
            self._clock.sleep(_PAUSE_S)


def _properties(limits: ContainmentLimits, keeper_pid: int) -> list[tuple[str, tuple[str, Any]]]:
    wanted: list[tuple[str, tuple[str, Any]]] = [
        ("Description", ("s", "An attempt of Stoker")),
        ("PIDs", ("au", [keeper_pid])),
        ("Delegate", ("b", True)),
        ("CollectMode", ("s", "inactive-or-failed")),
    ]
    if limits.memory_bytes is not None:
        # The group inside has the exact cap; this one leaves room for the cleanup shell, and is what `systemctl` shows.
        wanted.append(("MemoryMax", ("t", limits.memory_bytes + _KEEPER_ROOM_BYTES)))
        wanted.append(("MemorySwapMax", ("t", limits.swap_bytes)))
    return wanted
