from __future__ import annotations

import pytest

from stoker.core.capability import ProbeFinding
from stoker.core.device import GIB, MIB, Backend, MemoryType, TriState, TriStateAnswer
from stoker.core.frozen import changed, field_names
from stoker.devices.probes import amd, nvidia, others
from stoker.devices.probes.inventory import QUICK_PROBES, made_up_uuid, merge
from stoker.devices.probes.observations import (
    PROBES,
    DetectedDevices,
    DeviceReport,
    ProbeResult,
    order_of,
    usable_backends,
)
from stoker.devices.probes.visibility import DetectedMachineFacts
from tests.fakes.asker import recorded

NVML = nvidia.read_nvml(recorded("nvml/two-rtx4090.txt"))
SMI = nvidia.read_nvidia_smi(recorded("nvidia-smi/r535-two-rtx4090.csv"))
TORCH = others.read_torch(recorded("torch/2.6-two-rtx4090.txt"))
OLD_TORCH = others.read_torch(recorded("torch/1.13-without-addresses.txt"))
FACTS = DetectedMachineFacts(
    tag="this machine",
    ram_total_bytes=64 * GIB,
    ram_available_bytes=50 * GIB,
    device_files={0: True, 1: True},
    may_use_kfd=True,
)


def codes(found: DetectedDevices) -> list[str]:
    return [finding.code for finding in found.findings]


def with_first(statement: ProbeResult, **fields: object) -> ProbeResult:
    first, *rest = statement.reports
    return changed(statement, reports=(changed(first, **fields), *rest))


def test_probes_that_agree_make_one_device_each() -> None:
    found = merge([NVML, SMI, TORCH], {}, FACTS)
    assert [one.uuid for one in found.devices] == [one.uuid for one in NVML.reports]
    assert found.findings == ()
    assert found.backends == {Backend.CUDA: "12.2", Backend.WEBGPU: ""}
    assert found.sources == {"devices": "nvml, nvidia-smi, torch", "cuda": "nvml"}


def test_every_field_says_who_it_comes_from() -> None:
    device = merge([SMI, TORCH, NVML], {}, FACTS).devices[0]
    assert (device.total_bytes, device.sources["total_bytes"]) == (24564 * MIB, "nvml")
    without = merge([SMI, TORCH, with_first(NVML, total_bytes=None)], {}, FACTS).devices[0]
    assert (without.total_bytes, without.sources["total_bytes"]) == (24564 * MIB, "nvidia-smi")
    only = merge([TORCH], {}, FACTS).devices[0]
    assert (only.total_bytes, only.sources["uuid"]) == (25393692672, "torch")


def test_the_order_of_statements_does_not_matter() -> None:
    assert merge([NVML, SMI, TORCH], {}, FACTS).devices == merge([TORCH, SMI, NVML], {}, FACTS).devices


def test_every_probe_has_its_place_in_every_order() -> None:
    of_kernel = {nvidia.KERNEL, nvidia.JETSON, amd.KFD, others.PCI}
    assert {*QUICK_PROBES, nvidia.NVIDIA_SMI, others.TORCH, *of_kernel} == set(PROBES)
    for field in field_names(DeviceReport):
        assert set(order_of(field)) == set(PROBES) - ({others.TORCH} if field == "index" else set()), field


@pytest.mark.parametrize("backend", Backend)
def test_any_backend_implies_webgpu(backend: Backend) -> None:
    assert usable_backends({backend: "1.2"}, ()) == {Backend.WEBGPU: "", backend: "1.2"}
    assert usable_backends({}, ()) == {}


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"name": "NVIDIA GeForce RTX 3090"}, "disagree_name", "nvidia-smi says 'NVIDIA GeForce RTX 3090'"),
        ({"total_bytes": 24499 * MIB}, "disagree_total_bytes", "nvidia-smi says 23.9 GiB"),
    ],
)
def test_a_difference_is_a_finding_and_the_trusted_one_is_believed(
    fields: dict[str, object], code: str, said: str
) -> None:
    found = merge([NVML, with_first(SMI, **fields)], {}, FACTS)
    assert codes(found) == [code]
    assert said in found.findings[0].message
    assert (found.devices[0].name, found.devices[0].total_bytes) == ("NVIDIA GeForce RTX 4090", 24564 * MIB)


def test_64_mib_more_or_less_are_the_same() -> None:
    assert codes(merge([NVML, with_first(SMI, total_bytes=24500 * MIB)], {}, FACTS)) == []


def test_a_device_that_one_tool_does_not_list_is_a_finding() -> None:
    found = merge([NVML, changed(SMI, reports=SMI.reports[:1])], {}, FACTS)
    assert codes(found) == ["disagree_count"]
    assert found.findings[0].message == "nvml lists 2 devices, nvidia-smi lists 1"


def test_what_the_driver_keeps_for_itself_is_no_difference() -> None:
    torch = others.read_torch(recorded("torch/2.6-h200.txt"))
    h200 = nvidia.read_nvml(recorded("nvml/h200.txt"))
    assert codes(merge([h200, torch], {}, FACTS)) == []
    assert codes(merge([with_first(h200, reserved_bytes=None), torch], {}, FACTS)) == []
    less = with_first(torch, total_bytes=140 * GIB - GIB)
    assert codes(merge([h200, less], {}, FACTS)) == ["disagree_total_bytes"]


def test_vendors_prefixes_are_no_difference_in_names() -> None:
    assert codes(merge([NVML, with_first(SMI, name="GeForce RTX 4090")], {}, FACTS)) == []


def test_statements_join_by_address_where_one_has_no_uuid() -> None:
    kernel = ProbeResult(
        probe="kernel",
        reports=(DeviceReport(backend=Backend.CUDA, pci="0000:41:00.0", minor=1, name="NVIDIA GeForce RTX 4090"),),
    )
    found = merge([NVML, kernel], {}, FACTS)
    assert len(found.devices) == 2
    assert "kernel" in found.devices[1].installed.why


def test_a_torch_without_addresses_is_matched_by_place_and_name() -> None:
    found = merge([NVML, OLD_TORCH], {}, FACTS)
    assert [one.usable.verdict for one in found.devices] == [TriState.YES, TriState.NO]
    one = changed(OLD_TORCH, reports=OLD_TORCH.reports[:1])
    second = merge([NVML, one], {"CUDA_VISIBLE_DEVICES": "1"}, FACTS)
    assert [device.usable.verdict for device in second.devices] == [TriState.UNKNOWN, TriState.YES]


def test_a_torch_without_addresses_that_fits_nothing_is_a_finding() -> None:
    found = merge([NVML, with_first(OLD_TORCH, name="Another card")], {}, FACTS)
    assert len(found.devices) == 2
    assert "torch_unmatched" in codes(found)


def test_a_board_takes_its_memory_from_the_machine() -> None:
    smi = nvidia.read_nvidia_smi(recorded("nvidia-smi/r540-jetson-orin.csv"))
    board = ProbeResult(
        probe="jetson",
        reports=(
            DeviceReport(backend=Backend.CUDA, index=0, name="NVIDIA Jetson AGX Orin", memory_type=MemoryType.UNIFIED),
        ),
    )
    (device,) = merge([smi, board], {}, FACTS).devices
    assert (device.name, device.memory_type) == ("NVIDIA Jetson AGX Orin", MemoryType.UNIFIED)
    assert (device.total_bytes, device.free_bytes) == (64 * GIB, 50 * GIB)
    assert (device.sources["total_bytes"], device.sources["uuid"]) == ("meminfo", "nvidia-smi")
    assert device.usable_bytes == 64 * GIB // MIB * 60 // 100 * MIB


@pytest.mark.parametrize("recording", ["r580-gb10.csv", "not-supported.csv", "r540-jetson-orin.csv"])
def test_a_name_alone_tells_that_memory_is_unified(recording: str) -> None:
    (device,) = merge([nvidia.read_nvidia_smi(recorded(f"nvidia-smi/{recording}"))], {}, FACTS).devices
    assert (device.memory_type, device.total_bytes) == (MemoryType.UNIFIED, 64 * GIB)


def test_a_card_in_a_board_is_another_device() -> None:
    board = ProbeResult(
        probe="jetson",
        reports=(DeviceReport(backend=Backend.CUDA, index=0, name="NVIDIA Jetson", memory_type=MemoryType.UNIFIED),),
    )
    found = merge([changed(SMI, reports=SMI.reports[:1]), board], {}, FACTS)
    assert {one.memory_type for one in found.devices} == set(MemoryType)


def test_a_device_without_identity_gets_one_that_is_this_machines() -> None:
    statement = ProbeResult(
        probe="system_profiler", reports=(DeviceReport(backend=Backend.METAL, index=0, name="Apple M1"),)
    )
    (device,) = merge([statement], {}, FACTS).devices
    assert device.uuid.startswith("LOCAL-")
    assert device.sources["uuid"] == "made up"
    assert merge([statement], {}, FACTS).devices[0].uuid == device.uuid
    assert merge([statement], {}, changed(FACTS, tag="another")).devices[0].uuid != device.uuid
    assert made_up_uuid("a", Backend.CUDA, "1") != made_up_uuid("a", Backend.ROCM, "1")


def test_two_devices_of_one_name_are_told_apart() -> None:
    twice = ProbeResult(probe="nvml", reports=(NVML.reports[0], changed(NVML.reports[0], pci="0000:99:00.0")))
    found = merge([twice], {}, FACTS)
    assert len({one.uuid for one in found.devices}) == 2
    assert codes(found) == ["duplicate_uuid"]


def test_device_files_without_a_device_in_the_library_are_a_named_finding() -> None:
    nothing = nvidia.read_nvml(recorded("nvml/no-devices.txt"))
    found = merge([nothing], {}, FACTS)
    assert codes(found) == ["nvml_sees_nothing"]
    assert "2 NVIDIA devices" in found.findings[0].message
    assert codes(merge([nothing], {}, changed(FACTS, device_files={}))) == []
    assert codes(merge([NVML], {}, FACTS)) == []


def test_a_divided_device_is_used_by_its_parts() -> None:
    whole, large, small = merge([nvidia.read_nvml(recorded("nvml/a100-mig.txt"))], {}, FACTS).devices
    assert whole.usable.is_no
    assert "divided" in whole.usable.why
    assert (large.visible.is_yes, small.visible.is_yes) == (True, True)
    assert large.total_bytes == 19968 * MIB
    assert large.name == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"


def test_hidden_devices_can_not_be_spoken_to() -> None:
    found = merge([NVML, SMI], {"CUDA_VISIBLE_DEVICES": ""}, FACTS)
    assert [one.visible.verdict for one in found.devices] == [TriState.NO, TriState.NO]
    assert [one.installed.verdict for one in found.devices] == [TriState.YES, TriState.YES]
    assert found.backends == {}


def test_a_device_file_that_is_missing_or_forbidden_hides_its_device() -> None:
    kernel = ProbeResult(probe="kernel", reports=tuple(changed(one, free_bytes=None) for one in NVML.reports))
    found = merge([kernel], {}, changed(FACTS, device_files={0: False}))
    assert [one.visible.is_no for one in found.devices] == [True, True]
    assert found.devices[0].visible.why == "no permission to use /dev/nvidia0"
    assert "no /dev/nvidia1 here" in found.devices[1].visible.why
    windows = merge([kernel], {}, changed(FACTS, device_files={}, has_device_files=False))
    assert all(one.visible.is_yes for one in windows.devices)


def test_a_device_whose_memory_the_driver_reads_is_reached_whatever_its_file_is_called() -> None:
    found = merge([NVML], {}, changed(FACTS, device_files={7: True}))
    assert all(one.visible.is_yes for one in found.devices)


def test_a_device_that_only_the_bus_knows_is_installed_and_no_more() -> None:
    stopped = TriStateAnswer(verdict=TriState.NO, why="no driver has it, and computing needs nvidia")
    bare = DeviceReport(
        backend=Backend.CUDA, pci="0000:01:00.0", name="NVIDIA device 0x2684", driver_hint="install it", works=stopped
    )
    (device,) = (found := merge([ProbeResult(probe="pci", reports=(bare,))], {}, FACTS)).devices
    assert (device.installed.is_yes, device.usable.is_no) == (True, True)
    assert codes(found) == ["driver_missing"]
    assert found.findings[0].message.endswith(": no driver has it, and computing needs nvidia")
    kept = changed(bare, driver_hint="")
    assert codes(merge([ProbeResult(probe="pci", reports=(kept,))], {}, FACTS)) == []


def test_a_device_that_the_driver_does_not_show_in_a_container_is_not_visible() -> None:
    other = ProbeResult(
        probe="pci", reports=(DeviceReport(backend=Backend.CUDA, pci="0000:a1:00.0", name="NVIDIA device"),)
    )
    device = next(one for one in merge([NVML, other], {}, FACTS).devices if one.pci == "0000:a1:00.0")
    assert device.visible.is_no
    assert "does not show it here" in device.visible.why


def test_a_mismatch_of_versions_stops_every_program() -> None:
    broken = nvidia.read_nvml(recorded("nvml/version-mismatch.txt"))
    kernel = ProbeResult(probe="kernel", reports=(changed(NVML.reports[0], total_bytes=None, free_bytes=None),))
    (device,) = (found := merge([broken, kernel], {}, FACTS)).devices
    assert device.usable.is_no
    assert "different versions" in device.usable.why
    assert codes(found) == ["driver_mismatch"]


def test_a_torch_that_fails_to_start_stops_the_devices_it_should_see() -> None:
    found = merge([NVML, others.read_torch(recorded("torch/driver-too-old.txt"))], {}, FACTS)
    assert all(one.usable.is_no and "too old" in one.usable.why for one in found.devices)
    assert codes(found) == ["torch_error", "torch_sees_fewer"]
    assert found.backends == {}


def test_a_torch_for_processors_says_nothing_about_devices() -> None:
    found = merge([NVML, others.read_torch(recorded("torch/cpu-only.txt"))], {}, FACTS)
    assert [one.usable.verdict for one in found.devices] == [TriState.UNKNOWN, TriState.UNKNOWN]
    assert codes(found) == ["torch_without_gpu"]


def test_a_torch_that_sees_fewer_than_is_visible_is_a_finding() -> None:
    found = merge([NVML, changed(TORCH, reports=TORCH.reports[:1])], {}, FACTS)
    assert [one.usable.verdict for one in found.devices] == [TriState.YES, TriState.NO]
    assert codes(found) == ["torch_sees_fewer"]
    assert codes(merge([NVML, changed(TORCH, reports=TORCH.reports[:1])], {"CUDA_VISIBLE_DEVICES": "0"}, FACTS)) == []


def test_torch_knows_which_of_unequal_devices_a_number_means() -> None:
    unequal = with_first(NVML, name="NVIDIA GeForce GTX 1080")
    hidden = {"CUDA_VISIBLE_DEVICES": "0"}
    alone = merge([unequal], hidden, FACTS)
    assert [one.visible.verdict for one in alone.devices] == [TriState.UNKNOWN, TriState.UNKNOWN]
    assert codes(alone) == ["device_order_unknown", "device_order_unknown"]
    heard = merge([unequal, changed(TORCH, reports=TORCH.reports[1:])], hidden, FACTS)
    assert [one.visible.verdict for one in heard.devices] == [TriState.NO, TriState.YES]
    assert codes(heard) == []


def test_amds_probes_are_merged_by_address() -> None:
    told = amd.read_amd(recorded("amd-smi/26.1-gpu-data.json"))
    kfd = ProbeResult(
        probe="kfd",
        reports=(
            DeviceReport(
                backend=Backend.ROCM, pci="0000:a3:00.0", uuid="GPU-00000000000000aa", index=0, name="AMD gfx942"
            ),
        ),
        backends={Backend.ROCM: ""},
    )
    found = merge([told, kfd], {}, FACTS)
    joined = next(one for one in found.devices if one.pci == "0000:a3:00.0")
    assert (joined.uuid, joined.name) == ("GPU-00000000000000aa", "AMD Instinct MI300X")
    assert (joined.index, joined.sources["index"]) == (0, "kfd")


@pytest.mark.parametrize(("may_use", "why"), [(None, "no /dev/kfd"), (False, "no permission to use /dev/kfd")])
def test_rocm_needs_its_device_file(may_use: bool | None, why: str) -> None:
    found = merge([amd.read_amd(recorded("amd-smi/24.6-list.json"))], {}, changed(FACTS, may_use_kfd=may_use))
    assert why in found.devices[0].visible.why
    assert found.backends == {}


def test_findings_are_said_once() -> None:
    finding = ProbeFinding(code="probe_timeout", message="hangs", probe="nvidia-smi")
    found = merge([changed(SMI, findings=(finding, finding))], {}, FACTS)
    assert codes(found) == ["probe_timeout"]


def test_what_two_probes_said_of_a_real_h200_is_one_device_that_they_agree_on() -> None:
    smi = nvidia.read_nvidia_smi(recorded("nvidia-smi/r580-h200-recorded.csv"))
    torch = others.read_torch(recorded("torch/2.11-h200-recorded.txt"))
    found = merge([smi, torch], {}, FACTS)
    (device,) = found.devices
    assert (device.name, device.driver, device.capability) == ("NVIDIA H200", "580.159.04", "9.0")
    assert device.uuid == "GPU-7fb8cdab-7af0-8f14-07d4-5dede1837342"
    assert device.total_bytes == 143771 * 1024**2
    assert device.usable.is_yes
    assert found.findings == ()
