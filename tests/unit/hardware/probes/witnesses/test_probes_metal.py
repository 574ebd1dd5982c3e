from __future__ import annotations

import pytest

from stoker.hardware.probes.asking import Said, Silent
from stoker.hardware.probes.witnesses import metal
from stoker.model.devices import Backend, MemoryType
from tests.fakes.asker import recorded


def test_apples_own_gpu_works_in_the_machines_memory() -> None:
    statement = metal.read(recorded("system_profiler/m1.json"))
    (device,) = statement.sightings
    assert (device.name, device.memory_type, device.total_bytes) == ("Apple M1", MemoryType.UNIFIED, None)
    assert statement.backends == {Backend.METAL: "3"}


def test_a_card_in_a_mac_has_memory_of_its_own() -> None:
    built_in, card = metal.read(recorded("system_profiler/intel-with-radeon.json")).sightings
    assert (built_in.memory_type, card.memory_type) == (MemoryType.UNIFIED, MemoryType.DISCRETE)
    assert (card.total_bytes, card.index) == (8 << 30, 1)


def test_units_in_another_language_are_understood() -> None:
    (device,) = metal.read(recorded("system_profiler/localised.json")).sightings
    assert device.total_bytes == 96 << 30


def test_a_gpu_that_does_not_speak_metal_is_none_of_ours() -> None:
    statement = metal.read(recorded("system_profiler/no-metal.json"))
    assert (statement.sightings, statement.backends, statement.findings) == ((), {}, ())


@pytest.mark.parametrize("out", ["", "Graphics/Displays:\n", "[]", '{"SPDisplaysDataType": null}', "null"])
def test_what_is_no_list_is_a_finding(out: str) -> None:
    statement = metal.read(Said(out=out))
    assert [finding.code for finding in statement.findings] == ["probe_garbage"]


def test_silence_is_a_finding() -> None:
    assert not metal.read(Silent(why="missing", code="probe_missing")).was_heard
