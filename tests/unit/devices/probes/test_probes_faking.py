from __future__ import annotations

import pytest

from stoker.core.device import GIB, Backend, MemoryType
from stoker.core.errors import FakeForbidden, InvalidConfig
from stoker.devices.probes.inventory import faked
from stoker.devices.probes.observations import DetectedDevices


def fake(text: str, **environment: str) -> DetectedDevices:
    found = faked({"STOKER_GPU_FAKE": text, **environment})
    assert found is not None
    return found


def test_without_the_variable_probes_have_the_word() -> None:
    assert faked({}) is None
    assert faked({"STOKER_STRICT": "1"}) is None


@pytest.mark.parametrize("text", ["", "none", " None ", "NONE"])
def test_empty_and_none_mean_no_accelerator(text: str) -> None:
    found = fake(text)
    assert (found.devices, found.backends, found.is_fake) == ((), {}, True)


def test_words_are_backends_and_any_implies_webgpu() -> None:
    assert set(fake("cuda").backends) == {Backend.CUDA, Backend.WEBGPU}
    assert set(fake("rocm,metal").backends) == {Backend.ROCM, Backend.METAL, Backend.WEBGPU}
    assert set(fake("opengl").backends) == {Backend.OPENGL, Backend.WEBGPU}
    assert set(fake("webgpu").backends) == {Backend.WEBGPU}


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("cuda", [24]),
        ("cuda:8GiB", [8]),
        ("cuda:2x24GiB", [24, 24]),
        ("cuda: 2 x 24 GiB", [24, 24]),
        ("cuda:1x80G,cuda:2x8GiB", [80, 8, 8]),
        ("CUDA:2X24gib", [24, 24]),
    ],
)
def test_devices_have_the_memory_that_was_asked_for(text: str, sizes: list[int]) -> None:
    devices = fake(text).devices
    assert [one.total_bytes for one in devices] == [size * GIB for size in sizes]
    assert [one.index for one in devices] == list(range(len(sizes)))
    assert len({one.uuid for one in devices}) == len(sizes)


def test_all_that_is_invented_is_labelled() -> None:
    found = fake("cuda:2x24GiB,metal")
    assert all(one.is_fake and one.uuid.startswith("FAKE-") and "Fake" in one.name for one in found.devices)
    assert all("STOKER_GPU_FAKE" in one.usable.why for one in found.devices)
    assert [finding.code for finding in found.findings] == ["faked"]
    assert found.devices[-1].memory_type is MemoryType.UNIFIED


def test_the_same_fake_on_two_hosts_is_two_devices() -> None:
    first, second = (faked({"STOKER_GPU_FAKE": "cuda"}, host_tag=tag) for tag in ("aa", "bb"))
    assert first is not None
    assert second is not None
    assert first.devices[0].uuid != second.devices[0].uuid


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(InvalidConfig) as caught:
        fake("cuda:0x4GiB,coda,none,,cuda:lots,webgpu:4GiB,cuda:24,:4GiB,glib,cuda:9999999x1GiB")
    said = "\n".join(map(str, caught.value.faults))
    assert len(caught.value.faults) == 10
    for part in (
        "0 devices",
        "'coda'",
        "stands alone",
        "empty word",
        "'lots'",
        "no memory of its own",
        "no unit",
        "glib",
    ):
        assert part in said
    assert "did you mean 'cuda'?" in said
    assert caught.value.exit_code == 21


def test_a_word_that_only_contains_a_backend_is_none() -> None:
    for word in ("gl", "cudart", "opengles", "rocm metal"):
        with pytest.raises(InvalidConfig):
            fake(word)


@pytest.mark.parametrize("strict", ["1", "true", "yes"])
def test_strict_mode_forbids_every_fake(strict: str) -> None:
    for text in ("cuda", "none", "", "nonsense"):
        with pytest.raises(FakeForbidden) as caught:
            fake(text, STOKER_STRICT=strict)
        assert caught.value.hint


@pytest.mark.parametrize("lenient", ["", "0", "false", "no", "off"])
def test_strict_mode_can_be_off(lenient: str) -> None:
    assert fake("cuda", STOKER_STRICT=lenient).is_fake
