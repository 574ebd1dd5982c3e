"""Which devices the variables of CUDA and ROCm leave to a program, by those libraries' own rules. Pure.

CUDA_VISIBLE_DEVICES is a list of numbers or of UUIDs, which may be cut short. Set and empty means none. The first entry
that is none ends the list (`0,-1,2` is `0`); an entry that is there twice empties it. Numbers count in CUDA's order,
the fastest device first unless CUDA_DEVICE_ORDER=PCI_BUS_ID: among unequal devices nobody outside CUDA knows which one
is meant. ROCR_VISIBLE_DEVICES hides from all of ROCm; HIP_VISIBLE_DEVICES, or else CUDA_VISIBLE_DEVICES, counts in what
that leaves. NVIDIA_VISIBLE_DEVICES is a container's: its numbers are the host's and mean nothing inside, where hidden
devices simply have no device files; its UUIDs, `none` and `void` are honoured.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from stoker.model.devices import Answer, Backend, Verdict
from stoker.model.frozen import frozen

CUDA_VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
CONTAINER_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
ROCR_VARIABLE = "ROCR_VISIBLE_DEVICES"
HIP_VARIABLE = "HIP_VISIBLE_DEVICES"

_NUMBER = re.compile(r"\s*([+-]?\d+)")
_UUID_STARTS = ("GPU-", "MIG-", "FAKE-")
_YES = Answer(verdict=Verdict.YES)


@frozen
class Candidate:
    """A device as far as these rules look at it."""

    uuid: str
    backend: Backend
    name: str = ""
    parent: str = ""
    """The UUID of the device that it is a part of."""


@frozen
class Listed:
    """What a list names: places in the order of the list, and why it ends before its end."""

    places: tuple[int, ...]
    why: str = ""


def visible_answers(candidates: Sequence[Candidate], environment: Mapping[str, str]) -> tuple[Answer, ...]:
    """Say of each device whether variables hide it. Candidates stand in their drivers' order, parts after wholes."""
    answers = dict.fromkeys(range(len(candidates)), _YES)
    cuda = [at for at, one in enumerate(candidates) if one.backend is Backend.CUDA]
    rocm = [at for at, one in enumerate(candidates) if one.backend is Backend.ROCM]
    for places, judge in ((cuda, _cuda), (rocm, _rocm)):
        judged = judge([candidates[at] for at in places], environment)
        answers.update(zip(places, judged, strict=True))
    return tuple(answers[at] for at in range(len(candidates)))


def read_list(value: str, uuids: Sequence[str]) -> Listed:
    """Read a list of numbers or UUIDs as CUDA does, over devices of these UUIDs."""
    entries = [entry.strip() for entry in value.split(",")]
    if entries == [""]:
        return Listed(places=(), why="it is set and empty")
    read = _by_uuid if entries[0].upper().startswith(_UUID_STARTS) else _by_number
    places: list[int] = []
    for entry in entries:
        place = read(entry, uuids)
        if place is None:
            return Listed(places=tuple(places), why=f"{entry!r} names no device and ends the list")
        if place in places:
            return Listed(places=(), why=f"{entry!r} is there twice, which empties the list")
        places.append(place)
    return Listed(places=tuple(places))


def _by_number(entry: str, uuids: Sequence[str]) -> int | None:
    found = _NUMBER.match(entry)
    # As strtol reads: `1gpu` is 1.
    place = int(found[1]) if found and len(found[1]) < 10 else -1
    return place if 0 <= place < len(uuids) else None


def _by_uuid(entry: str, uuids: Sequence[str]) -> int | None:
    if not entry.upper().startswith(_UUID_STARTS):
        return None
    fitting = [place for place, uuid in enumerate(uuids) if uuid.lower().startswith(entry.lower())]
    exact = [place for place in fitting if uuids[place].lower() == entry.lower()]
    unique = exact or fitting
    return unique[0] if len(unique) == 1 else None


def _cuda(candidates: Sequence[Candidate], environment: Mapping[str, str]) -> list[Answer]:
    outside = _container(candidates, environment.get(CONTAINER_VARIABLE))
    value = environment.get(CUDA_VARIABLE)
    if value is None:
        return outside
    wholes = [one for one in candidates if not one.parent]
    # Numbers count wholes; UUIDs may name parts as well.
    by_uuid = value.strip().upper().startswith(_UUID_STARTS)
    countable = list(candidates) if by_uuid else wholes
    listed = read_list(value, [one.uuid for one in countable])
    named = {countable[place].uuid for place in listed.places}
    if not by_uuid and 0 < len(named) < len(wholes) and not _is_order_known(wholes, environment):
        return [_unknown(value) if answer.is_yes else answer for answer in outside]
    hidden = _hidden(CUDA_VARIABLE, value, listed.why)
    return [
        answer if not answer.is_yes or one.uuid in named or one.parent in named else hidden
        for one, answer in zip(candidates, outside, strict=True)
    ]


def _container(candidates: Sequence[Candidate], value: str | None) -> list[Answer]:
    if value is None or value.strip().lower() == "all":
        return [_YES] * len(candidates)
    if value.strip().lower() in ("", "none", "void"):
        return [_hidden(CONTAINER_VARIABLE, value, "it gives the container no device")] * len(candidates)
    entries = [entry.strip().lower() for entry in value.split(",")]
    if not all(entry.upper().startswith(_UUID_STARTS) for entry in entries):
        return [_YES] * len(candidates)
    hidden = _hidden(CONTAINER_VARIABLE, value, "")
    return [
        _YES if any(one.uuid.lower().startswith(entry) or one.parent.lower() == entry for entry in entries) else hidden
        for one in candidates
    ]


def _is_order_known(wholes: Sequence[Candidate], environment: Mapping[str, str]) -> bool:
    # Equal devices are equally fast, and CUDA keeps those in the order of the bus.
    return environment.get(ORDER_VARIABLE, "") == "PCI_BUS_ID" or len({one.name for one in wholes}) == 1


def _rocm(candidates: Sequence[Candidate], environment: Mapping[str, str]) -> list[Answer]:
    answers = [_YES] * len(candidates)
    left = list(range(len(candidates)))
    for names in ((ROCR_VARIABLE,), (HIP_VARIABLE, CUDA_VARIABLE)):
        name = next((one for one in names if one in environment), None)
        if name is None:
            continue
        listed = read_list(environment[name], [candidates[at].uuid for at in left])
        kept = [left[place] for place in listed.places]
        for at in left:
            if at not in kept:
                answers[at] = _hidden(name, environment[name], listed.why)
        left = kept
    return answers


def _hidden(variable: str, value: str, why: str) -> Answer:
    return Answer(verdict=Verdict.NO, why=f"hidden by {variable}={value!r}" + (f": {why}" if why else ""))


def _unknown(value: str) -> Answer:
    return Answer(
        verdict=Verdict.UNKNOWN,
        why=f"{CUDA_VARIABLE}={value!r} counts from the fastest device, and which one that is only CUDA knows;"
        f" set {ORDER_VARIABLE}=PCI_BUS_ID or write UUIDs",
    )
