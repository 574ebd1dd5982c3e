from __future__ import annotations

import pytest

from stoker.core.device import MIB, Backend
from stoker.devices.probes import amd
from stoker.host.command_runner import ProbeFailure, ProbeOutput
from tests.fakes.asker import recorded


def test_amd_smi_is_read_in_both_of_its_shapes() -> None:
    (old,) = amd.read_amd(recorded("amd-smi/24.6-list.json")).reports
    new, other = amd.read_amd(recorded("amd-smi/26.1-gpu-data.json")).reports
    assert old == new
    assert (old.uuid, old.pci) == ("GPU-6f1f0a2b3c4d5e6f", "0000:83:00.0")
    assert (old.name, old.capability, old.driver) == ("AMD Instinct MI300X", "gfx942", "6.10.5")
    assert old.total_bytes == 196592 * MIB
    assert (other.uuid, other.index) == ("", 1)


def test_rocm_smi_is_read_whatever_it_calls_the_name() -> None:
    first, second = amd.read_rocm(recorded("rocm-smi/5.4-mi250x.json")).reports
    assert first.name == "AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2"
    assert (first.uuid, first.driver) == ("GPU-1f9de0957d137942", "5.18.13")
    assert (second.index, second.pci) == (1, "0000:c6:00.0")
    card, processor = amd.read_rocm(recorded("rocm-smi/6.2-rx7900xt-and-processor.json")).reports
    assert (card.name, card.capability, card.free_bytes) == ("Radeon RX 7900 XT", "gfx1100", 21458059264 - 27856896)
    assert (processor.name, processor.uuid) == ("Raphael", "")


def test_warnings_around_the_json_do_not_matter() -> None:
    statement = amd.read_rocm(recorded("rocm-smi/warnings-around.txt"))
    assert [(one.name, one.pci) for one in statement.reports] == [("Phoenix3", "0000:c4:00.0")]
    assert statement.backends == {Backend.ROCM: ""}


def test_a_size_that_is_not_told_is_not_known() -> None:
    (device,) = amd.read_amd(recorded("amd-smi/memory-not-told.json")).reports
    assert (device.total_bytes, device.driver) == (None, "")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("rocm-smi/no-driver.txt", "probe_garbage"),
        ("rocm-smi/nothing-to-report.txt", "probe_garbage"),
        ("rocm-smi/needs-groups.txt", "probe_permission"),
        ("amd-smi/needs-groups.txt", "probe_permission"),
        ("amd-smi/truncated.json", "probe_garbage"),
    ],
)
def test_what_is_no_list_is_a_finding(name: str, code: str) -> None:
    read = amd.read_rocm if name.startswith("rocm") else amd.read_amd
    statement = read(recorded(name, exit_code=1))
    assert not statement.is_readable
    assert [finding.code for finding in statement.findings] == [code]


def test_values_that_can_not_be_are_findings_and_the_rest_is_read() -> None:
    statement = amd.read_rocm(recorded("rocm-smi/strange-values.json"))
    assert [finding.code for finding in statement.findings] == ["probe_garbage"]
    assert [(one.name, one.total_bytes) for one in statement.reports] == [("7", None)]


@pytest.mark.parametrize("out", ["[]", "{}", "null", "[1, [2]]", '{"gpu_data": {}}', "{" * 10_000, '"text"'])
def test_any_json_at_all_is_survived(out: str) -> None:
    for read in (amd.read_amd, amd.read_rocm):
        assert read(ProbeOutput(out=out)).reports == ()


def test_silence_is_a_finding() -> None:
    for read in (amd.read_amd, amd.read_rocm):
        assert [one.code for one in read(ProbeFailure(why="hangs", code="probe_timeout")).findings] == ["probe_timeout"]
