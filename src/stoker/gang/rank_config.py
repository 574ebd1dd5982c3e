"""What a gang is made of, as its user says it, and all that can be wrong with that, reported at once.

Nothing here starts or allocates anything: what can be known to be wrong is known before the first process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from stoker.core.errors import BadGang, Diagnostic
from stoker.core.frozen import fresh, frozen, frozen_by_position
from stoker.core.text import did_you_mean
from stoker.gang.mailbox import MOST_BUFFERS, Phase, Slot

# Where named buffers lie in a window: in declared order, each on a border of 256 bytes.

ALIGNMENT_BYTES = 256


@frozen
class WindowLayout:
    """The places of buffers, in declared order, and how much room they need together."""

    slots: tuple[Slot, ...]
    needed_bytes: int
    """To the end of the last buffer; nothing is after it."""


def lay_out(sizes_bytes: Sequence[int]) -> WindowLayout:
    """Return each buffer its place."""
    slots: list[Slot] = []
    end = 0
    for size in sizes_bytes:
        offset = aligned(end)
        slots.append(Slot(offset=offset, nbytes=size))
        end = offset + size
    return WindowLayout(slots=tuple(slots), needed_bytes=end)


def aligned(size_bytes: int, border_bytes: int = ALIGNMENT_BYTES) -> int:
    """Return the next border at or after this size."""
    return -(-size_bytes // border_bytes) * border_bytes


MOST_RANKS = 1024
MOST_DEVICE_ID = 2**31 - 1
"""What has room in a rank's page."""
MOST_NAME_BYTES = 128
ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
"""What one item of each type takes."""
BACKENDS = ("gloo", "nccl")
DEVICE_KINDS = ("cpu", "cuda")


@frozen_by_position
class Buffer:
    """A named piece of a rank's window."""

    name: str
    nbytes: int
    dtype: str = "uint8"
    load_from_host: bool = False
    """True if it is filled from the rank's `inputs` before the gang is ready."""
    store_to_host: bool = False
    """True if its content is copied to the owner: on request, and when the gang closes."""


@frozen_by_position
class RankConfig:
    """One rank: its device and its window."""

    device_id: int
    buffers: Sequence[Buffer] = ()
    window_bytes: int | None = None
    """How large the window is asked to be; `None`: as its buffers need."""
    inputs: Mapping[str, Any] = fresh(factory=dict)
    """What its buffers are filled with, by name: anything that gives its bytes."""

    @property
    def layout(self) -> WindowLayout:
        return lay_out([buffer.nbytes for buffer in self.buffers])

    @property
    def wanted_bytes(self) -> int:
        """How large a window to ask for."""
        return self.layout.needed_bytes if self.window_bytes is None else self.window_bytes


def listed(ranks: object) -> tuple[Any, ...]:
    """Return the given configs as a tuple, whatever they are. Raises `BadGang` if it is no list."""
    if isinstance(ranks, Iterable):
        return tuple(ranks)
    fault = Diagnostic("ranks", f"is a {type(ranks).__name__}", "give a list of one RankConfig per rank")
    raise BadGang(f"invalid gang: {fault}", faults=(fault,))


def check(
    configs: Sequence[object],
    *,
    nranks: int | None = None,
    device_ids: Sequence[int] | None = None,
    memory_bytes: int | None = None,
    others: Sequence[Diagnostic] = (),
) -> None:
    """Raise one `BadGang` with every fault there is.

    `device_ids` are those that exist, `None` where that is not known; `memory_bytes` is what all windows together may
    take; `others` are faults that were found elsewhere.
    """
    faults = [*others, *_count_faults(len(configs), nranks)]
    good = [config for config in configs if isinstance(config, RankConfig)]
    for rank, config in enumerate(configs):
        if isinstance(config, RankConfig):
            faults += _rank_faults(f"ranks[{rank}]", config, device_ids)
        else:
            faults.append(
                Diagnostic(f"ranks[{rank}]", f"is a {type(config).__name__}", "write RankConfig(device_id=…)")
            )
    if not faults and memory_bytes is not None:
        wanted = sum(config.wanted_bytes for config in good)
        if wanted > memory_bytes:
            faults.append(
                Diagnostic("ranks", f"their windows want {wanted} bytes, and this machine has {memory_bytes}")
            )
    if faults:
        listed = "; ".join(map(str, faults[:3])) + (f"; and {len(faults) - 3} more" if len(faults) > 3 else "")
        raise BadGang(f"invalid gang: {listed}", faults=tuple(faults))


def word_faults(words: Mapping[str, tuple[object, Sequence[str]]]) -> list[Diagnostic]:
    """Return which of these choices are none: by name, what was given and what is allowed."""
    return [
        Diagnostic(name, f"{word!r} is none of {', '.join(allowed)}", did_you_mean(str(word), allowed))
        for name, (word, allowed) in words.items()
        if word not in allowed
    ]


def time_faults(times: Mapping[str, object]) -> list[Diagnostic]:
    """Return which of these durations are none."""
    return [
        Diagnostic(name, f"{value!r} is not a duration", "give seconds, more than 0")
        for name, value in times.items()
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf")
    ]


def limit_faults(limits: object) -> list[Diagnostic]:
    """Return what is wrong with limits of phases."""
    if not isinstance(limits, Mapping):
        return [Diagnostic("phase_limits_s", f"is a {type(limits).__name__}", "write {Phase.COMM: 20}")]
    by_place = {f"phase_limits_s[{key!r}]": limit_s for key, limit_s in limits.items()}
    strange = [place for place, key in zip(by_place, limits, strict=True) if key not in tuple(Phase)]
    return [*(Diagnostic(place, "is no phase", "write Phase.COMM") for place in strange), *time_faults(by_place)]


def _count_faults(count: int, nranks: int | None) -> list[Diagnostic]:
    if not count:
        return [Diagnostic("ranks", "there are none", "give one RankConfig per rank")]
    if count > MOST_RANKS:
        return [Diagnostic("ranks", f"{count} are more than {MOST_RANKS}")]
    if nranks is not None and nranks != count:
        return [Diagnostic("ranks", f"{nranks} ranks and {count} configs", "give exactly one config per rank")]
    return []


def _rank_faults(where: str, config: RankConfig, device_ids: Sequence[int] | None) -> list[Diagnostic]:
    faults = _device_faults(where, config.device_id, device_ids)
    given: object = config.buffers
    if not isinstance(given, Sequence):
        return [*faults, Diagnostic(f"{where}.buffers", f"is a {type(given).__name__}", "write [Buffer(name, nbytes)]")]
    buffers: list[object] = list(given)
    if len(buffers) > MOST_BUFFERS:
        faults.append(Diagnostic(f"{where}.buffers", f"{len(buffers)} buffers are more than {MOST_BUFFERS}"))
    names: set[str] = set()
    for index, buffer in enumerate(buffers):
        place = f"{where}.buffers[{index}]"
        if not isinstance(buffer, Buffer):
            faults.append(Diagnostic(place, f"is a {type(buffer).__name__}", "write Buffer(name, nbytes)"))
            continue
        faults += _buffer_faults(place, buffer, names)
        names.add(str(buffer.name))
    if not faults:
        faults += _window_faults(where, config)
        faults += _input_faults(where, config)
    return faults


def _device_faults(where: str, device_id: object, device_ids: Sequence[int] | None) -> list[Diagnostic]:
    if not _is_count(device_id) or not 0 <= device_id <= MOST_DEVICE_ID:
        return [Diagnostic(f"{where}.device_id", f"{device_id!r} is not the number of a device")]
    if device_ids is not None and device_id not in device_ids:
        known = ", ".join(map(str, device_ids)) or "none"
        return [Diagnostic(f"{where}.device_id", f"device {device_id} does not exist", f"there are: {known}")]
    return []


def _buffer_faults(place: str, buffer: Buffer, names: set[str]) -> list[Diagnostic]:
    faults = []
    name: object = buffer.name
    if not isinstance(name, str) or not name.strip():
        faults.append(Diagnostic(f"{place}.name", "is empty"))
    elif len(name.encode(errors="replace")) > MOST_NAME_BYTES or not name.isprintable():
        faults.append(Diagnostic(f"{place}.name", f"{name!r} is too long, or not printable"))
    elif name in names:
        faults.append(Diagnostic(f"{place}.name", f"{name!r} is there already", "names are unique within a rank"))
    if not _is_count(buffer.nbytes) or buffer.nbytes <= 0:
        faults.append(Diagnostic(f"{place}.nbytes", f"{buffer.nbytes!r} is not a size", "at least 1 byte"))
    dtype: object = buffer.dtype
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        hint = did_you_mean(str(buffer.dtype), ITEM_BYTES) or f"one of {', '.join(ITEM_BYTES)}"
        faults.append(Diagnostic(f"{place}.dtype", f"{buffer.dtype!r} is no type", hint))
    elif _is_count(buffer.nbytes) and buffer.nbytes % ITEM_BYTES[buffer.dtype]:
        item = ITEM_BYTES[buffer.dtype]
        faults.append(
            Diagnostic(f"{place}.nbytes", f"{buffer.nbytes} bytes are no whole number of {buffer.dtype} ({item})")
        )
    return faults


def _window_faults(where: str, config: RankConfig) -> list[Diagnostic]:
    window = config.window_bytes
    if window is None:
        return []
    if not _is_count(window) or window <= 0:
        return [Diagnostic(f"{where}.window_bytes", f"{window!r} is not a size", "at least 1 byte, or leave it out")]
    needed = config.layout.needed_bytes
    if window < needed:
        over = next(
            buffer
            for buffer, slot in zip(config.buffers, config.layout.slots, strict=True)
            if slot.offset + slot.nbytes > window
        )
        text = f"{window} bytes are too few: {over.name!r} ends past them, and {needed} are needed"
        return [Diagnostic(f"{where}.window_bytes", text)]
    return []


def _input_faults(where: str, config: RankConfig) -> list[Diagnostic]:
    faults = []
    by_name = {buffer.name: buffer for buffer in config.buffers}
    inputs: object = config.inputs
    if not isinstance(inputs, Mapping):
        return [Diagnostic(f"{where}.inputs", f"is a {type(inputs).__name__}", "give bytes by the names of buffers")]
    for name, given in inputs.items():
        place = f"{where}.inputs[{name!r}]"
        if name not in by_name or not by_name[name].load_from_host:
            faults.append(Diagnostic(place, "no buffer of that name has load_from_host"))
            continue
        try:
            size = memoryview(given).cast("B").nbytes
        except TypeError:
            hint = "give bytes, or an array whose items lie one behind the other"
            faults.append(Diagnostic(place, f"a {type(given).__name__} has no buffer of bytes", hint))
            continue
        if size != by_name[name].nbytes:
            faults.append(Diagnostic(place, f"{size} bytes for a buffer of {by_name[name].nbytes}"))
    faults += [
        Diagnostic(f"{where}.inputs", f"nothing for {buffer.name!r}, which has load_from_host")
        for buffer in config.buffers
        if buffer.load_from_host and buffer.name not in config.inputs
    ]
    return faults


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
