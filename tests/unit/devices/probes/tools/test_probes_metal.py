from __future__ import annotations

import pytest

from stoker.core.device import Backend, MemoryType
from stoker.devices.probes import others
from stoker.host.command_runner import ProbeFailure, ProbeOutput
from tests.fakes.asker import recorded


def test_apples_own_gpu_works_in_the_machines_memory() -> None:
    statement = others.read_system_profiler(recorded("system_profiler/m1.json"))
    (device,) = statement.reports
    assert (device.name, device.memory_type, device.total_bytes) == ("Apple M1", MemoryType.UNIFIED, None)
    assert statement.backends == {Backend.METAL: "3"}


def test_a_card_in_a_mac_has_memory_of_its_own() -> None:
    built_in, card = others.read_system_profiler(recorded("system_profiler/intel-with-radeon.json")).reports
    assert (built_in.memory_type, card.memory_type) == (MemoryType.UNIFIED, MemoryType.DISCRETE)
    assert (card.total_bytes, card.index) == (8 << 30, 1)


def test_units_in_another_language_are_understood() -> None:
    (device,) = others.read_system_profiler(recorded("system_profiler/localised.json")).reports
    assert device.total_bytes == 96 << 30


def test_a_gpu_that_does_not_speak_metal_is_none_of_ours() -> None:
    statement = others.read_system_profiler(recorded("system_profiler/no-metal.json"))
    assert (statement.reports, statement.backends, statement.findings) == ((), {}, ())


@pytest.mark.parametrize("out", ["", "Graphics/Displays:\n", "[]", '{"SPDisplaysDataType": null}', "null"])
def test_what_is_no_list_is_a_finding(out: str) -> None:
    statement = others.read_system_profiler(ProbeOutput(out=out))
    assert [finding.code for finding in statement.findings] == ["probe_garbage"]


def test_silence_is_a_finding() -> None:
    assert not others.read_system_profiler(ProbeFailure(why="missing", code="probe_missing")).is_readable
