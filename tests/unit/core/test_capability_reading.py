"""A capability from elsewhere is read back as it was, or refused with the place that is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.core.capability import (
    MOST_DEVICES,
    Capability,
    MachineInterpreter,
    ProbeFinding,
    capability_from_dict,
)
from stoker.core.device import Backend, Device, MemoryType, TriState, TriStateAnswer
from stoker.core.errors import BadInput
from stoker.core.jsontext import LONGEST_TEXT, dumps, loads

YES = TriStateAnswer(verdict=TriState.YES, why="it worked")
WHOLE = Capability(
    hostname="desk",
    os="linux",
    arch="x86_64",
    cpu_name="a fast one",
    cpu_cores=8,
    cpu_threads=16,
    ram_total_bytes=1 << 35,
    ram_available_bytes=1 << 34,
    devices=(
        Device(
            uuid="GPU-1",
            backend=Backend.CUDA,
            name="RTX",
            index=0,
            memory_type=MemoryType.UNIFIED,
            total_bytes=1 << 34,
            free_bytes=0,
            driver="550",
            capability="8.9",
            pci="0000:01:00.0",
            installed=YES,
            visible=TriStateAnswer(verdict=TriState.NO, why="hidden"),
            usable=TriStateAnswer(verdict=TriState.UNKNOWN),
            is_fake=True,
            sources={"name": "nvml"},
        ),
    ),
    backends={Backend.CUDA: "12.4", Backend.OPENCL: ""},
    python_version="3.11",
    interpreters=(MachineInterpreter(path="/usr/bin/python3", version="3.11", torch="2.4", why=""),),
    recipes=("tabular/gbt", "command"),
    training_commit="abc",
    findings=(ProbeFinding(code="probe_timeout", message="it hung", probe="nvml", hint="wait"),),
    sources={"cpu_cores": "kernel"},
    is_fake=True,
)
LEAST = Capability(hostname="", os="", arch="")


@pytest.mark.parametrize("capability", [WHOLE, LEAST], ids=["whole", "least"])
def test_what_was_sent_is_what_is_read(capability: Capability):
    read = capability_from_dict(loads(dumps(capability.to_dict())))
    assert read == capability
    assert read.digest == capability.digest


def test_fields_that_nobody_knows_yet_are_passed_over():
    assert capability_from_dict({**WHOLE.to_dict(), "colour": {"red": 1}}) == WHOLE


def test_a_newer_schema_is_refused_with_what_to_do():
    with pytest.raises(BadInput) as caught:
        capability_from_dict({**WHOLE.to_dict(), "schema": 2})
    assert "newer" in caught.value.message
    assert "older than the worker" in caught.value.hint


def bent(**said: Any) -> dict[str, Any]:
    return {**WHOLE.to_dict(), **said}


def bent_device(**said: Any) -> dict[str, Any]:
    return bent(devices=[{**WHOLE.devices[0].to_dict(), **said}])


@pytest.mark.parametrize(
    ("said", "where"),
    [
        pytest.param([], "capability:", id="a list"),
        pytest.param(None, "capability:", id="nothing"),
        pytest.param(bent(hostname=5), "capability.hostname", id="a number for a name"),
        pytest.param(bent(hostname="x" * (LONGEST_TEXT + 1)), "capability.hostname", id="a very long name"),
        pytest.param(bent(cpu_cores=0), "capability.cpu_cores", id="no core"),
        pytest.param(bent(cpu_cores=True), "capability.cpu_cores", id="a truth for cores"),
        pytest.param(bent(cpu_cores=1.5), "capability.cpu_cores", id="half a core"),
        pytest.param(bent(cpu_cores=1 << 40), "capability.cpu_cores", id="more cores than there are"),
        pytest.param(bent(ram_total_bytes=-1), "capability.ram_total_bytes", id="less than no RAM"),
        pytest.param(bent(ram_total_bytes=1 << 70), "capability.ram_total_bytes", id="more RAM than there is"),
        pytest.param(bent(devices={}), "capability.devices", id="no list of devices"),
        pytest.param(bent(devices=[None] * (MOST_DEVICES + 1)), "capability.devices", id="too many devices"),
        pytest.param(bent(devices=[7]), "capability.devices[0]", id="a device that is a number"),
        pytest.param(bent_device(uuid=""), "capability.devices[0].uuid", id="a device without a UUID"),
        pytest.param(bent_device(backend="magic"), "capability.devices[0].backend", id="an unknown backend"),
        pytest.param(bent_device(memory_type="big"), "capability.devices[0].memory_type", id="an unknown memory"),
        pytest.param(bent_device(visible="yes"), "capability.devices[0].visible", id="an answer that is a text"),
        pytest.param(
            bent_device(visible={"verdict": "maybe"}), "capability.devices[0].visible.verdict", id="an odd verdict"
        ),
        pytest.param(bent(devices=[WHOLE.devices[0].to_dict()] * 2), "capability.devices", id="one device twice"),
        pytest.param(bent(backends=["cuda"]), "capability.backends", id="backends that are a list"),
        pytest.param(bent(backends={"magic": ""}), "capability.backends", id="a backend nobody knows"),
        pytest.param(bent(recipes=[{}]), "capability.recipes[0]", id="a recipe that is none"),
        pytest.param(bent(is_fake="no"), "capability.is_fake", id="a text for a truth"),
        pytest.param(bent(sources={"a": 1}), "capability.sources", id="a source that is a number"),
        pytest.param(bent(interpreters=[[]]), "capability.interpreters[0]", id="an interpreter that is a list"),
        pytest.param(bent(schema="one"), "capability.schema", id="a schema in words"),
    ],
)
def test_what_is_no_capability_is_refused_with_its_place(said: object, where: str):
    with pytest.raises(BadInput) as caught:
        capability_from_dict(said)
    assert where in caught.value.message
    assert len(caught.value.message) < 300
