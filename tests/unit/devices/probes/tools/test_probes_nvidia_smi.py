from __future__ import annotations

import pytest

from stoker.core.device import MIB, Backend
from stoker.devices.probes import nvidia
from stoker.devices.probes.observations import ProbeResult
from stoker.host.command_runner import ProbeFailure, ProbeOutput
from tests.fakes.asker import recorded


def read(name: str, exit_code: int = 0) -> ProbeResult:
    return nvidia.read_nvidia_smi(recorded(f"nvidia-smi/{name}", exit_code=exit_code))


def codes(statement: ProbeResult) -> list[str]:
    return [finding.code for finding in statement.findings]


def test_a_whole_list_is_read_with_units_and_addresses() -> None:
    first, second = read("r535-two-rtx4090.csv").reports
    assert first.uuid == "GPU-6f1c3c3e-5b9d-2a3e-8a47-1d2c9be0a111"
    assert (first.pci, second.pci) == ("0000:01:00.0", "0000:41:00.0")
    assert (first.index, first.name, first.driver) == (0, "NVIDIA GeForce RTX 4090", "535.161.07")
    assert first.total_bytes == 24564 * MIB
    assert (first.free_bytes, first.reserved_bytes, first.capability) == (24217 * MIB, 346 * MIB, "8.9")
    assert not first.is_split


def test_a_list_says_that_cuda_can_be_spoken() -> None:
    assert set(read("r550-h200.csv").backends) == {Backend.CUDA}
    assert read("no-devices.txt", 6).backends == {}


def test_an_old_version_is_asked_for_fewer_columns() -> None:
    assert nvidia.needs_old_columns(recorded("nvidia-smi/r470-unknown-field.txt", exit_code=2))
    assert not nvidia.needs_old_columns(recorded("nvidia-smi/r535-two-rtx4090.csv"))
    assert not nvidia.needs_old_columns(ProbeFailure(why="hangs", code="probe_timeout"))
    assert "compute_cap" not in nvidia.nvidia_smi_command(is_old=True)[1]
    first, _ = read("r418-tesla-k80-old-columns.csv").reports
    assert (first.name, first.total_bytes, first.capability) == ("Tesla K80", 11441 * MIB, "")


def test_what_a_tool_does_not_have_is_not_known() -> None:
    (jetson,) = read("r540-jetson-orin.csv").reports
    assert (jetson.total_bytes, jetson.free_bytes, jetson.pci) == (None, None, "")
    assert jetson.uuid == "54c66e20-9f9e-5d41-8c89-1f5f8a5a6666"
    (gb10,) = read("r580-gb10.csv").reports
    assert (gb10.total_bytes, gb10.pci, gb10.capability) == (None, "000f:01:00.0", "12.1")
    assert read("not-supported.csv").reports[0].total_bytes is None
    assert read("not-supported.csv").findings == ()


def test_what_a_user_may_not_ask_is_said_and_not_fatal() -> None:
    statement = read("mig-in-a-container.csv")
    (device,) = statement.reports
    assert (device.name, device.total_bytes, device.is_split) == ("NVIDIA H200", None, True)
    assert codes(statement) == ["probe_permission"]


@pytest.mark.parametrize(
    ("name", "exit_code", "code"),
    [
        ("driver-unreachable.txt", 9, "driver_unreachable"),
        ("version-mismatch.txt", 18, "driver_mismatch"),
        ("unknown-error.txt", 255, "nvml_unknown_error"),
        ("needs-root.txt", 4, "probe_permission"),
        ("not-the-tool.txt", 0, "probe_garbage"),
        ("not-the-tool.txt", 3, "probe_garbage"),
        ("plain-screen.txt", 0, "probe_garbage"),
        ("r470-unknown-field.txt", 2, "probe_garbage"),
    ],
)
def test_a_tool_that_gives_no_list_says_why(name: str, exit_code: int, code: str) -> None:
    statement = read(name, exit_code)
    assert not statement.is_readable
    assert statement.reports == ()
    assert codes(statement) == [code]
    assert all(finding.hint and "\n" not in finding.message for finding in statement.findings)


def test_no_devices_is_an_answer() -> None:
    statement = read("no-devices.txt", 6)
    assert statement.is_readable
    assert (statement.reports, statement.findings) == ((), ())


def test_a_device_that_is_lost_is_noticed_beside_the_others() -> None:
    statement = read("one-lost.csv", 15)
    assert [one.total_bytes for one in statement.reports] == [24564 * MIB, None]
    assert codes(statement) == ["device_lost"]


def test_a_warning_below_the_list_does_not_spoil_it() -> None:
    statement = read("inforom-warning.csv")
    assert len(statement.reports) == 1
    assert codes(statement) == ["probe_garbage"]
    assert "infoROM is corrupted" in statement.findings[0].message


@pytest.mark.parametrize(
    ("name", "total_mib"), [("windows-crlf.csv", 6144), ("localised.csv", 24576), ("nul-bytes.csv", 24564)]
)
def test_line_ends_nuls_and_other_units_do_not_matter(name: str, total_mib: int) -> None:
    statement = read(name)
    assert [one.total_bytes for one in statement.reports] == [total_mib * MIB]
    assert statement.findings == ()


def test_a_number_that_can_be_read_in_two_ways_is_not_read() -> None:
    statement = read("other-decimals.csv")
    assert [one.total_bytes for one in statement.reports] == [None]
    assert statement.reports[0].free_bytes == 24200 * MIB
    assert codes(statement) == ["probe_garbage"]


def test_a_row_that_is_cut_off_keeps_what_is_whole() -> None:
    statement = read("truncated.csv")
    whole, cut = statement.reports
    assert whole.total_bytes == 24564 * MIB
    assert (cut.uuid, cut.total_bytes) == ("GPU-0b7f8a90-44d2-7b1c-93aa-6be05d7c2222", None)
    assert codes(statement) == ["probe_garbage"]


def test_silence_is_a_finding() -> None:
    statement = nvidia.read_nvidia_smi(ProbeFailure(why="nvidia-smi did not answer within 5 s", code="probe_timeout"))
    assert not statement.is_readable
    assert codes(statement) == ["probe_timeout"]


def test_parts_of_a_divided_device_are_devices_of_their_own() -> None:
    whole = read("r550-a100-mig.csv")
    assert whole.reports[0].is_split
    both = nvidia.read_parts(whole, recorded("nvidia-smi/r550-a100-mig-list.txt"))
    _, large, small = both.reports
    assert (large.uuid, large.parent) == ("MIG-c7384736-a75d-5afc-978f-d2f1294409fd", whole.reports[0].uuid)
    assert (large.name, large.total_bytes) == ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20 << 30)
    assert (small.total_bytes, small.driver) == (5 << 30, "550.54.15")


def test_parts_that_can_not_be_listed_are_a_finding() -> None:
    whole = read("r550-a100-mig.csv")
    asked = nvidia.read_parts(whole, ProbeFailure(why="hangs", code="probe_timeout"))
    assert asked.reports == whole.reports
    assert codes(asked) == ["probe_timeout"]


def test_a_number_of_a_thousand_digits_is_garbage_and_no_more() -> None:
    header = recorded("nvidia-smi/r550-h200.csv").out.splitlines()[0]
    row = f"{'9' * 1000}, GPU-1, x, name, {'9' * 1000} MiB, 1 MiB, 1, 1 MiB, 9.0, Disabled"
    statement = nvidia.read_nvidia_smi(ProbeOutput(out=f"{header}\n{row}\n"))
    assert [(one.index, one.total_bytes) for one in statement.reports] == [(None, None)]
    assert codes(statement) == ["probe_garbage"]
