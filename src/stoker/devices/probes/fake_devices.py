"""Fake hardware by `STOKER_GPU_FAKE`, for tests and demonstrations.

The variable is a comma list of words, each with its memory if it has devices: `cuda`, `rocm,metal`, `cuda:2x24GiB`,
`cuda:24GiB,cuda:8GiB`. Empty and `none` mean a machine without accelerators. All results are labelled as fake.
`STOKER_STRICT=1` forbids it. All errors in the variable are reported at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stoker.core.capability import ProbeFinding
from stoker.core.device import COMPUTE_BACKENDS, GIB, Backend, Device, MemoryType, TriState, TriStateAnswer
from stoker.core.errors import Diagnostic, FakeForbidden, InvalidConfig
from stoker.core.frozen import changed, frozen
from stoker.core.text import did_you_mean, parse_size
from stoker.devices.probes.observations import DetectedDevices, usable_backends
from stoker.devices.probes.readers import FAKE_VARIABLE
from stoker.devices.probes.visibility import VisibilityDevice, visible_answers

STRICT_VARIABLE = "STOKER_STRICT"
SOURCE = "fake"

_NONE = "none"
_DEFAULT_BYTES = 24 * GIB
_MOST_DEVICES = 256
_MOST_BYTES = 1 << 50
_COUNT = re.compile(r"(\d+)\s*x\s*(.*)", re.ASCII)
_OFF = frozenset({"", "0", "false", "no", "off"})
_WHY = f"invented by {FAKE_VARIABLE}"


@frozen
class _FakeWord:
    backend: Backend
    count: int
    total_bytes: int


def faked(environment: Mapping[str, str], *, host_tag: str = "") -> DetectedDevices | None:
    """Return the fake hardware of the environment; `None` if there is none, and probes are used.

    Variables hide fake devices as they do real ones. `host_tag` makes their UUIDs this host's. Raises `FakeForbidden`
    in strict mode, `InvalidConfig` for an invalid value.
    """
    text = environment.get(FAKE_VARIABLE)
    if text is None:
        return None
    if environment.get(STRICT_VARIABLE, "").strip().lower() not in _OFF:
        raise FakeForbidden(
            f"{FAKE_VARIABLE}={text!r} requests fake hardware, and {STRICT_VARIABLE} forbids it",
            hint=f"unset one of the two; unset {FAKE_VARIABLE} to see the real devices",
            value=text,
        )
    words = _parse(text)
    devices = _hide(_devices(words, host_tag), environment)
    return DetectedDevices(
        devices=devices,
        backends=usable_backends(dict.fromkeys((one.backend for one in words), ""), devices),
        findings=(
            ProbeFinding(
                code="faked",
                message=f"the accelerators of this machine are {_WHY}={text!r}: nothing was probed",
                probe=SOURCE,
                hint=f"unset {FAKE_VARIABLE} to see the real devices",
            ),
        ),
        sources={"devices": SOURCE, "backends": SOURCE},
        is_fake=True,
    )


def _parse(text: str) -> list[_FakeWord]:
    texts = [word.strip().lower() for word in text.split(",")]
    if texts in ([""], [_NONE]):
        return []
    words: list[_FakeWord] = []
    faults: list[Diagnostic] = []
    for word in texts:
        try:
            words.append(_one(word))
        except ValueError as error:
            faults.append(Diagnostic(FAKE_VARIABLE, str(error), _hint(word)))
    if sum(one.count for one in words) > _MOST_DEVICES:
        faults.append(Diagnostic(FAKE_VARIABLE, f"more than {_MOST_DEVICES} devices"))
    if faults:
        message = f"{FAKE_VARIABLE}={text!r} can't be read" if len(faults) > 1 else str(faults[0])
        raise InvalidConfig(message, faults=tuple(faults), value=text)
    return words


def _one(word: str) -> _FakeWord:
    name, colon, size = (part.strip() for part in word.partition(":"))
    if not name:
        raise ValueError("an empty word between commas" if not colon else f"{word!r} names no backend")
    if name == _NONE:
        raise ValueError(f"{_NONE!r} stands alone or not at all")
    if name not in tuple(Backend):
        raise ValueError(f"{name!r} is not a backend")
    backend = Backend(name)
    if backend not in COMPUTE_BACKENDS:
        if colon:
            raise ValueError(f"{name!r} uses the devices of other backends: it has no memory of its own")
        return _FakeWord(backend=backend, count=0, total_bytes=0)
    count, total_bytes = _amount(size) if colon else (1, _DEFAULT_BYTES)
    return _FakeWord(backend=backend, count=count, total_bytes=total_bytes)


def _amount(size: str) -> tuple[int, int]:
    counted = _COUNT.fullmatch(size)
    count, each = (int(counted[1]), counted[2]) if counted else (1, size)
    if each.isdecimal():
        raise ValueError(f"{size!r} has no unit")
    total_bytes = parse_size(each)
    if not 0 < count <= _MOST_DEVICES:
        raise ValueError(f"{count} devices: allowed are 1 to {_MOST_DEVICES}")
    if not 0 < total_bytes <= _MOST_BYTES:
        raise ValueError(f"{each!r} is not a size of device memory")
    return count, total_bytes


def _hint(word: str) -> str:
    name = word.partition(":")[0].strip()
    if name and name not in (*Backend, _NONE):
        return did_you_mean(name, map(str, Backend)) or f"one of {', '.join(Backend)}, or {_NONE}"
    return "for example cuda, cuda:2x24GiB or none"


def _devices(words: list[_FakeWord], host_tag: str) -> tuple[Device, ...]:
    made: list[Device] = []
    for backend in COMPUTE_BACKENDS:
        sizes = [one.total_bytes for one in words if one.backend is backend for _ in range(one.count)]
        made.extend(_device(backend, index, total_bytes, host_tag) for index, total_bytes in enumerate(sizes))
    return tuple(made)


def _hide(devices: tuple[Device, ...], environment: Mapping[str, str]) -> tuple[Device, ...]:
    candidates = [VisibilityDevice(uuid=one.uuid, backend=one.backend, name=one.name) for one in devices]
    return tuple(
        one if answer.is_yes else changed(one, visible=answer)
        for one, answer in zip(devices, visible_answers(candidates, environment), strict=True)
    )


def _device(backend: Backend, index: int, total_bytes: int, host_tag: str) -> Device:
    yes = TriStateAnswer(verdict=TriState.YES, why=_WHY)
    return Device(
        uuid=f"FAKE-{backend}-{index}{'-' * bool(host_tag)}{host_tag}",
        backend=backend,
        name=f"Fake {backend} device",
        index=index,
        memory_type=MemoryType.UNIFIED if backend is Backend.METAL else MemoryType.DISCRETE,
        total_bytes=total_bytes,
        free_bytes=total_bytes,
        installed=yes,
        visible=yes,
        usable=yes,
        is_fake=True,
        sources=dict.fromkeys(("uuid", "name", "total_bytes", "free_bytes"), SOURCE),
    )
