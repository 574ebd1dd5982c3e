"""What the state of devices and of torch means: three separate answers for each accelerator, and whether torch fits.

Pure, as `checkup`.
"""

from __future__ import annotations

from stoker.hardware.checkup import Check, State
from stoker.hardware.requiring import FAKED, Missing
from stoker.model.capability import Capability, Interpreter
from stoker.model.devices import Answer, Backend, Device
from stoker.model.units import format_size

_SPELT = {Backend.CUDA: "CUDA", Backend.ROCM: "ROCm", Backend.METAL: "Metal"}


def check_devices(capability: Capability) -> tuple[Check, ...]:
    """Judge each accelerator, and whatever probes noticed beside them."""
    devices = [_device(one, capability.backends.get(one.backend, "")) for one in capability.devices]
    if not devices:
        spoken = f"; programs can use {', '.join(capability.backends)}" if capability.backends else ""
        label = f" ({FAKED})" if capability.is_fake else ""
        message = f"none found; jobs run on the CPU{spoken}{label}"
        devices.append(Check(name="gpu", verdict=State.OK, message=message))
    noticed = [
        Check(name=one.probe or "probes", verdict=State.WARN, message=one.message, hint=one.hint)
        for one in capability.findings
    ]
    return (*devices, *noticed)


def check_torch(capability: Capability) -> tuple[Check, ...]:
    """Judge the torch of each interpreter against the devices."""
    having = [one for one in capability.interpreters if one.torch]
    if having:
        return tuple(_torch(one, capability) for one in having)
    where = ", ".join(one.path for one in capability.interpreters)
    message = f"none in {where}" if where else "no Python was found to look in"
    if capability.usable_devices and not capability.is_fake:
        hint = "a training that needs it can't use the devices: install torch there, or name a Python that has it"
        return (Check(name="torch", verdict=State.WARN, message=message, hint=hint),)
    return (Check(name="torch", verdict=State.OK, message=f"{message}; Stoker itself needs none"),)


def check_required(missing: tuple[Missing, ...]) -> tuple[Check, ...]:
    """Judge what was required and is not there."""
    return tuple(
        Check(name=f"require {one.word}", verdict=State.BAD, message=one.message, hint=one.hint) for one in missing
    )


def _device(device: Device, version: str) -> Check:
    label = device.backend if device.index is None else f"{device.backend} {device.index}"
    facts = [device.name, _memory(device)]
    facts += [f"driver {device.driver}"] if device.driver else []
    facts += [f"{_SPELT.get(device.backend, device.backend)} {version}"] if version else []
    facts += [device.uuid]
    answers = ("installed", device.installed), ("visible", device.visible), ("usable", device.usable)
    # Why an invented device is as it is needs to be said once only.
    told = ", ".join(
        f"{name} {answer.verdict if device.is_fake and answer.is_yes else _shown(answer)}" for name, answer in answers
    )
    message = f"{', '.join(facts)}; {told}{f' ({FAKED})' if device.is_fake else ''}"
    verdict, hint = _verdict(device)
    return Check(name=label, verdict=verdict, message=message, hint=hint)


def _memory(device: Device) -> str:
    if device.total_bytes is None:
        return "memory unknown"
    unified = " of the machine's memory" if device.memory_type == "unified" else ""
    if device.free_bytes is None:
        return f"{format_size(device.total_bytes)}{unified}, nobody says how much is free"
    return f"{format_size(device.free_bytes)} of {format_size(device.total_bytes)} free{unified}"


def _shown(answer: Answer) -> str:
    return f"{answer.verdict} ({answer.why})" if answer.why else str(answer.verdict)


def _verdict(device: Device) -> tuple[State, str]:
    if device.installed.is_no or (device.usable.is_no and not device.visible.is_no):
        return State.BAD, "mend its driver: no job is put there until then"
    if device.visible.is_no:
        return State.WARN, "programs started from here do not get it; unset what hides it if that is not meant"
    if device.usable.is_yes:
        return State.OK, ""
    return State.WARN, "no program has tried it: stoker doctor --smoke does, with the torch of your Python"


def _torch(python: Interpreter, capability: Capability) -> Check:
    built = f" for {_toolkit(python)} {python.torch_cuda}" if python.torch_cuda else ", for the CPU only"
    message = f"{python.torch}{built}, in {python.path} (Python {python.version or 'unknown'})"
    cuda = [one for one in capability.usable_devices if one.backend is Backend.CUDA and not one.is_fake]
    if cuda and not python.torch_cuda:
        hint = f"it can't use {cuda[0].name}: install a torch that was built for CUDA"
        return Check(name="torch", verdict=State.WARN, message=message, hint=hint)
    spoken = capability.backends.get(Backend.CUDA, "")
    if cuda and _toolkit(python) == "CUDA" and _major(python.torch_cuda) > _major(spoken) > 0:
        hint = f"the driver speaks CUDA {spoken}: update it, or install a torch for CUDA {_major(spoken)}"
        return Check(name="torch", verdict=State.WARN, message=message, hint=hint)
    return Check(name="torch", verdict=State.OK, message=message)


def _toolkit(python: Interpreter) -> str:
    return _SPELT[Backend.ROCM if "rocm" in python.torch else Backend.CUDA]


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isascii() and first.isdigit() else 0
