"""A score with its terms, for people: what was divided by what."""

from __future__ import annotations

from stoker.model.frozen import frozen
from stoker.model.units import format_size
from stoker.scheduler.fit import DevicePlacement, Placement, needed_bytes, room_bytes, slices_left
from stoker.scheduler.offers import DeviceOffer, NodeOffer
from stoker.scheduler.score import slices_needed
from stoker.scheduler.shapes import Shape
from stoker.scheduler.speeds import CPU_SPEED


@frozen
class Term:
    """One factor of a score."""

    name: str
    value: float
    text: str = ""
    """How it came about, where the name does not say it."""

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "value": self.value, "text": self.text}


def device_terms(shape: Shape, device: DeviceOffer, choice: DevicePlacement) -> tuple[Term, ...]:
    """Give the terms of a device's score; their product is the score."""
    if choice.is_shared:
        need, room = needed_bytes(shape, device), room_bytes(device)
        beside = ", its base is there" if choice.is_resident else ""
        value = choice.score / device.speed * (1 + device.jobs)
        first = Term(name="room", value=value, text=f"{format_size(room)} / {format_size(need)}{beside}")
    else:
        used = shape.vram_bytes or device.total_bytes
        text = f"1 + {format_size(used)} / {format_size(device.total_bytes)}, alone on it"
        first = Term(name="use", value=choice.score / device.speed, text=text)
    return first, _speed(device.speed), _load(device.jobs if choice.is_shared else 0)


def cpu_terms(shape: Shape, offer: NodeOffer, choice: Placement) -> tuple[Term, ...]:
    """Give the terms of a machine's score for a job on its CPU."""
    left, need = slices_left(offer), slices_needed(shape.ram_bytes, shape.cores)
    value = choice.key.score / CPU_SPEED * (1 + offer.jobs)
    text = "taken to be just enough" if left is None else f"{left:.4g} / {need:.4g} slices of 4 GiB and a core"
    return Term(name="room", value=value, text=text), _speed(CPU_SPEED), _load(offer.jobs)


def _speed(speed: float) -> Term:
    return Term(name="speed", value=speed)


def _load(jobs: int) -> Term:
    return Term(name="load", value=1 / (1 + jobs), text=f"1 / (1 + {jobs})" if jobs else "")
