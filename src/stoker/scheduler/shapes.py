"""Shapes: what placement can tell jobs apart by. A million jobs have a few hundred.

A shape holds a job's requirements and wishes, and of its names only what some node's list asks about. Jobs of one shape
are placed alike, so whatever is known of the shape is known of all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from stoker.model.devices import MIB, Backend
from stoker.model.frozen import frozen
from stoker.model.requirements import Requirements, WantedJob, Wish, environment_word
from stoker.scheduler.cost import CostRule

_TRIAL = re.compile(r"(.+)/\d+")


@frozen
class Shape:
    """Everything about a job that decides where it goes. Equal shapes are one shape."""

    wish: Wish
    backend: Backend
    device_count: int
    vram_bytes: int
    ram_bytes: int
    cores: int
    may_share: bool
    base: str
    base_bytes: int
    base_ram_bytes: int
    """What of its RAM those that share its base hold once: it has to fit as if it were the first, and counts once."""
    words: frozenset[str]
    """Those of its names that lists ask about."""
    allowed_hosts: frozenset[str]
    """Empty: all."""
    preferred_hosts: frozenset[str]
    is_advised_against: bool
    """The cost rule would keep it from devices."""

    @property
    def takes_devices(self) -> bool:
        return self.wish is not Wish.NEVER

    @property
    def takes_cpu(self) -> bool:
        return self.wish is not Wish.REQUIRE

    @property
    def increment_bytes(self) -> int:
        """What it takes of a device where its base is already."""
        return max(0, self.vram_bytes - self.base_bytes) if self.base else self.vram_bytes


def shape_of(wanted: WantedJob, *, listed: Iterable[str] | None = None, cost: CostRule | None = None) -> Shape:
    """Give a job's shape.

    `listed` are the words that lists ask about (nothing: keep every name), `cost` the rule that may advise against
    devices.
    """
    asked = wanted.requirements
    names = names_of(wanted)
    keep = names if listed is None else names.intersection(listed)
    takes_devices = asked.wish is not Wish.NEVER
    has_base = bool(asked.base) and (takes_devices or asked.base_ram_bytes > 0)
    return Shape(
        wish=asked.wish,
        backend=asked.backend if takes_devices else Backend.CUDA,
        device_count=max(1, asked.device_count) if takes_devices else 0,
        # Promises are in whole MiB, as usable memory is.
        vram_bytes=-(-asked.vram_bytes // MIB) * MIB if takes_devices else 0,
        ram_bytes=asked.ram_bytes,
        cores=asked.cores,
        may_share=asked.may_share and takes_devices,
        base=asked.base if has_base else "",
        base_bytes=min(asked.base_bytes // MIB * MIB, asked.vram_bytes) if has_base and takes_devices else 0,
        base_ram_bytes=min(asked.base_ram_bytes, asked.ram_bytes) if has_base else 0,
        words=keep,
        allowed_hosts=frozenset(wanted.allowed_hosts),
        preferred_hosts=frozenset(wanted.preferred_hosts),
        is_advised_against=cost is not None and _is_advised_against(cost, asked),
    )


def names_of(wanted: WantedJob) -> frozenset[str]:
    """Give what lists may call a job by: its name, that of the job it is a trial of (`name/3`), its model.

    A recipe also goes by its last word, as it does on the command line: `lora` is `language/lora`. An environment is
    asked about by machines that can't have it, code by machines that run only some.
    """
    names = {wanted.name, wanted.model, wanted.model.rpartition("/")[2]}
    if wanted.environment:
        names.add(environment_word(wanted.environment))
    if wanted.code:
        names.add(wanted.code)
    trial = _TRIAL.fullmatch(wanted.name)
    if trial:
        names.add(trial[1])
    return frozenset(names - {""})


def _is_advised_against(cost: CostRule, asked: Requirements) -> bool:
    return asked.wish is Wish.PREFER and cost.advise(asked.transfer_mb, asked.mflop).is_against
