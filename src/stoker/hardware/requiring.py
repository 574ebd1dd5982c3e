"""Whether a machine has what somebody requires of it by a word: `gpu`, `cuda`, `webgpu`.

What can be spoken here is there: a backend whose every device is hidden or known not to work is not spoken, and any
other implies webgpu. Here is what `doctor --require`, `preflight` and `gpu-preflight` say of it.
"""

from __future__ import annotations

from typing import Any

from stoker.hardware.probes.evidence import FAKE_VARIABLE
from stoker.model.capability import Capability
from stoker.model.devices import Backend, Device
from stoker.model.frozen import frozen
from stoker.model.suggest import did_you_mean

GPU_WORD = "gpu"
"""Any backend through which trainings compute."""
_COMPUTING = (Backend.CUDA, Backend.ROCM, Backend.METAL, Backend.ONEAPI)
WORDS = (GPU_WORD, *map(str, Backend))
"""What can be required."""
FAKED = f"faked by {FAKE_VARIABLE}"
"""The label of invented devices."""


@frozen
class Missing:
    """Something that is required and not there."""

    word: str
    message: str
    hint: str


def read_words(text: str) -> tuple[str, ...]:
    """Read a comma list of words. Raises `ValueError` that names the wrong ones, with suggestions."""
    words = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",") if part.strip()))
    wrong = [word for word in words if word not in WORDS]
    if wrong or not words:
        hints = " ".join(filter(None, (did_you_mean(word, WORDS) for word in wrong)))
        said = " and ".join(map(repr, wrong)) or "an empty text"
        message = f"{said} can't be required, only {', '.join(WORDS)}{f'; {hints}' if hints else ''}"
        raise ValueError(message)
    return words


def has(capability: Capability, word: str) -> bool:
    """Say whether what one of `WORDS` means can be used here."""
    words = _COMPUTING if word == GPU_WORD else (Backend(word),)
    return any(backend in capability.backends for backend in words)


def missing(capability: Capability, words: tuple[str, ...]) -> tuple[Missing, ...]:
    """Give what is required and can't be used, each with what there is instead and what to do."""
    return tuple(_missing(capability, word) for word in words if not has(capability, word))


def preflight_fields(capability: Capability) -> dict[str, Any]:
    """Give what `gpu-preflight` answers: there, any backend will do. `is_fake` only where devices were invented."""
    fields: dict[str, Any] = {
        "cuda": has(capability, Backend.CUDA),
        "cuda_version": _version(capability, Backend.CUDA),
        "metal": has(capability, Backend.METAL),
        "rocm": has(capability, Backend.ROCM),
        "rocm_version": _version(capability, Backend.ROCM),
        "wgpu": has(capability, Backend.WEBGPU),
    }
    fields["any_available"] = bool(capability.backends)
    if capability.is_fake:
        fields["is_fake"] = True
    return fields


def faked_by(capability: Capability) -> str:
    """Give the label of invented devices; empty where they are real."""
    return FAKED if capability.is_fake else ""


def _version(capability: Capability, backend: Backend) -> str | None:
    return capability.backends.get(backend) or None if has(capability, backend) else None


def _of(capability: Capability, word: str) -> list[Device]:
    return [one for one in capability.devices if word in (GPU_WORD, one.backend)]


def _missing(capability: Capability, word: str) -> Missing:
    there = _of(capability, word)
    if not there:
        others = ", ".join(one.name for one in capability.usable_devices)
        told = f": there is {others}" if others else ""
        hint = "nothing speaks for one here: install the card's driver, or use another machine"
        if capability.is_fake:
            hint = f"what is here is {FAKED}; unset it to see the real devices"
        elif capability.findings:
            hint = capability.findings[0].hint or capability.findings[0].message
        return Missing(word=word, message=f"{word} is required, and there is none{told}", hint=hint)
    first = there[0]
    if first.visible.is_no:
        return Missing(
            word=word,
            message=f"{word} is required; {first.name} is installed, but not visible: {first.visible.why}",
            hint="a variable or a permission hides it from programs that are started here",
        )
    return Missing(
        word=word,
        message=f"{word} is required; {first.name} is there, but can't be used: {first.usable.why}",
        hint="mend its driver; stoker doctor --deep asks it again, through torch",
    )
