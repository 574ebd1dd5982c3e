"""Whatever a tool prints, it is read without raising; whatever probes say, the merged answer holds together."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.device import Backend, MemoryType, TriState, TriStateAnswer
from stoker.devices.probes import amd, nvidia, others
from stoker.devices.probes.amd import read_properties
from stoker.devices.probes.inventory import merge
from stoker.devices.probes.observations import PROBES, DeviceReport, ProbeResult
from stoker.devices.probes.others import BACKEND_PROBES
from stoker.devices.probes.others import read as read_speaker
from stoker.devices.probes.visibility import DetectedMachineFacts, VisibilityDevice, read_list, visible_answers
from stoker.host.command_runner import ProbeFailure, ProbeOutput, Reply
from tests.fakes.asker import RECORDINGS
from tests.lengths import examples

READERS: dict[str, Callable[[Reply], ProbeResult]] = {
    "nvidia-smi": nvidia.read_nvidia_smi,
    "nvml": nvidia.read_nvml,
    "torch": others.read_torch,
    "amd-smi": amd.read_amd,
    "rocm-smi": amd.read_rocm,
    "system_profiler": others.read_system_profiler,
    **{one.probe: partial(read_speaker, one) for one in BACKEND_PROBES},
}
RECORDED = sorted(path for path in RECORDINGS.rglob("*") if path.is_file() and path.parent.name in READERS)


def check(statement: ProbeResult) -> None:
    for finding in statement.findings:
        assert finding.code
        assert finding.message.isprintable()
        assert len(finding.message) < 800
    for one in statement.reports:
        assert one.total_bytes is None or one.total_bytes > 0
        assert one.free_bytes is None or one.free_bytes >= 0
        assert one.name.isprintable() or one.name == ""


@pytest.mark.parametrize("tool", READERS)
@given(out=st.text(max_size=300), err=st.text(max_size=50), exit_code=st.integers(-20, 255))
def test_any_text_is_read(tool: str, out: str, err: str, exit_code: int) -> None:
    check(READERS[tool](ProbeOutput(out=out, err=err, exit_code=exit_code)))
    check(READERS[tool](ProbeFailure(why=err, code="probe_timeout", out=out)))


KEYS = [
    "devices",
    "uuid",
    "name",
    "total",
    "parts",
    "errors",
    "error",
    "torch",
    "cuda",
    "hip",
    "works",
    "metal",
    "asic",
    "vram",
    "size",
    "value",
    "unit",
    "gpu_data",
    "card0",
    "bus",
    "bdf",
    "gpu",
    "driver",
    "SPDisplaysDataType",
    "sppci_model",
    "spdisplays_metal",
    "spdisplays_vram",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=12,
)


@given(value=JSON)
def test_any_json_is_read(value: object) -> None:
    import json

    text = json.dumps(value)
    for tool, read in READERS.items():
        mark = "stoker-probe:" if tool in ("nvml", "torch") else ""
        check(read(ProbeOutput(out=f"{mark}{text}\n")))


@given(data=st.data())
def test_a_recording_that_was_cut_spliced_or_spoilt_is_read(data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(RECORDED))
    text = path.read_bytes().decode("utf-8", "replace")
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    noise = data.draw(st.text(max_size=5))
    for spoilt in (text[:end], text[start:], text[:start] + noise + text[end:], text[:start] + noise + text[start:]):
        check(READERS[path.parent.name](ProbeOutput(out=spoilt)))


@given(st.text(max_size=200))
def test_any_properties_are_read(text: str) -> None:
    assert all(number >= 0 for number in read_properties(text).values())


NAMES = st.sampled_from(["", "NVIDIA H200", "Orin (nvgpu)", "NVIDIA GB10", "Tesla K80"])
UUIDS = st.sampled_from(["", "GPU-1", "GPU-2", "gpu-1", "MIG-7", "MIG-1"])
DEVICE_REPORTS = st.builds(
    DeviceReport,
    backend=st.sampled_from([Backend.CUDA, Backend.ROCM, Backend.METAL]),
    uuid=UUIDS,
    pci=st.sampled_from(["", "0000:01:00.0", "0000:02:00.0"]),
    index=st.none() | st.integers(0, 3),
    minor=st.none() | st.integers(0, 3),
    name=NAMES,
    memory_type=st.none() | st.sampled_from(MemoryType),
    total_bytes=st.none() | st.integers(1, 1 << 40),
    reserved_bytes=st.none() | st.integers(0, 1 << 30),
    free_bytes=st.none() | st.integers(0, 1 << 40),
    parent=st.sampled_from(["", "", "GPU-1"]),
    is_split=st.booleans(),
    works=st.none() | st.builds(TriStateAnswer, verdict=st.sampled_from(TriState), why=st.just("tried")),
)
STATEMENTS = st.lists(
    st.builds(
        ProbeResult,
        probe=st.sampled_from(PROBES),
        reports=st.lists(DEVICE_REPORTS, max_size=4).map(tuple),
        is_readable=st.booleans(),
        looked_for=st.frozensets(st.sampled_from([Backend.CUDA, Backend.ROCM])),
    ),
    max_size=5,
    unique_by=lambda one: one.probe,
)
ENVIRONMENTS = st.dictionaries(
    st.sampled_from(["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"]),
    st.sampled_from(["", "0", "1,0", "-1", "GPU-1", "GPU-", "MIG-7,GPU-1", "all", "void", "x"]),
)
FACTS = DetectedMachineFacts(
    tag="here", ram_total_bytes=1 << 36, ram_available_bytes=1 << 35, device_files={0: True, 2: False}
)


@settings(max_examples=examples(60, 150))
@given(statements=STATEMENTS, environment=ENVIRONMENTS)
def test_whatever_probes_say_the_answer_holds_together(
    statements: list[ProbeResult], environment: dict[str, str]
) -> None:
    found = merge(statements, environment, FACTS)
    uuids = [one.uuid for one in found.devices]
    assert len(set(uuids)) == len(uuids)
    assert all(uuids)
    said = [report for one in statements for report in one.reports]
    assert len(found.devices) <= len(said)
    for device in found.devices:
        assert device.name
        assert device.installed.is_yes
        assert all(answer.why for answer in (device.installed, device.visible, device.usable))
        if device.memory_type is MemoryType.UNIFIED:
            assert device.total_bytes
        for field, probe in device.sources.items():
            assert probe in (*PROBES, "meminfo", "made up"), field
    assert found == merge(statements, environment, FACTS)
    assert found.devices == merge(statements[::-1], environment, FACTS).devices


@given(value=st.text(max_size=30), count=st.integers(0, 4))
def test_a_list_never_names_what_is_not_there(value: str, count: int) -> None:
    listed = read_list(value, [f"GPU-{number}" for number in range(count)])
    assert all(0 <= place < count for place in listed.places)
    assert len(set(listed.places)) == len(listed.places)


@given(
    environment=st.dictionaries(
        st.sampled_from(["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"]), st.text(max_size=12)
    ),
    backends=st.lists(st.sampled_from(Backend), max_size=5),
)
def test_variables_can_only_hide(environment: dict[str, str], backends: list[Backend]) -> None:
    candidates = [VisibilityDevice(uuid=f"GPU-{at}", backend=backend) for at, backend in enumerate(backends)]
    answers = visible_answers(candidates, environment)
    assert len(answers) == len(candidates)
    assert all(answer.why for answer in answers if not answer.is_yes)
    assert all(answer.is_yes for answer in visible_answers(candidates, {}))
