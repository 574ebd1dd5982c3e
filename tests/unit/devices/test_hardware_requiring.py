from __future__ import annotations

import pytest

from stoker.core.capability import ProbeFinding
from stoker.core.device import Backend, TriState, TriStateAnswer
from stoker.devices.checkup import faked_by, has, missing, preflight_fields, read_words
from tests.unit.devices.machines import NO, UNKNOWN, capability, device


def test_words_are_read_whole_and_once() -> None:
    assert read_words(" cuda , GPU,cuda") == ("cuda", "gpu")


@pytest.mark.parametrize(
    ("text", "said"),
    [("cudo", "did you mean 'cuda'?"), ("cuda,roc", "did you mean 'rocm'?"), ("", "an empty text"), ("gl", "'gl'")],
)
def test_other_words_are_refused_with_a_suggestion(text: str, said: str) -> None:
    with pytest.raises(ValueError, match="can't be required") as caught:
        read_words(text)
    assert said in str(caught.value)


def test_a_device_counts_unless_it_is_hidden_or_known_to_be_broken() -> None:
    assert has(capability(device(0, usable=UNKNOWN)), "cuda")
    assert not has(capability(device(0, visible=NO)), "cuda")
    assert not has(capability(device(0, usable=NO)), "cuda")
    assert has(capability(device(0, visible=NO), device(1)), "cuda")
    assert not has(capability(device(0, visible=NO)), "gpu")


def test_webgpu_is_there_with_any_other_and_not_with_a_hidden_device() -> None:
    assert has(capability(device(0)), "webgpu")
    assert has(capability(backends={Backend.WEBGPU: ""}), "webgpu")
    assert not has(capability(device(0, visible=NO)), "webgpu")
    assert not has(capability(), "webgpu")


def test_what_only_draws_is_no_gpu_to_compute_on() -> None:
    drawn = capability(backends={Backend.WEBGPU: "", Backend.OPENGL: "4.6"})
    assert has(drawn, "opengl")
    assert not has(drawn, "gpu")
    assert not has(capability(backends={Backend.WEBGPU: ""}, is_fake=True), "gpu")
    assert preflight_fields(drawn)["any_available"] is True
    assert all(has(capability(backends={one: ""}), "gpu") for one in (Backend.CUDA, Backend.ROCM, Backend.METAL))


def test_a_word_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="cudart"):
        has(capability(), "cudart")


def test_the_fields_of_the_preflight_are_exactly_these() -> None:
    nothing = {
        "cuda": False,
        "cuda_version": None,
        "metal": False,
        "rocm": False,
        "rocm_version": None,
        "wgpu": False,
        "any_available": False,
    }
    assert preflight_fields(capability()) == nothing
    assert preflight_fields(capability(device(0, visible=NO))) == nothing
    there = preflight_fields(capability(device(0)))
    assert there == {**nothing, "cuda": True, "cuda_version": "12.4", "wgpu": True, "any_available": True}
    assert list(there) == list(nothing)


def test_invented_devices_are_labelled_and_only_they() -> None:
    faked = capability(device(0, is_fake=True), is_fake=True)
    assert preflight_fields(faked)["is_fake"] is True
    assert faked_by(faked) == "faked by STOKER_GPU_FAKE"
    assert faked_by(capability()) == ""


def test_a_broken_device_is_told_by_name_and_reason() -> None:
    broken = device(0, usable=TriStateAnswer(verdict=TriState.NO, why="torch fails on it"))
    assert missing(capability(broken), ("cuda",))[0].message == (
        "cuda is required; Card 0 is there, but can't be used: torch fails on it"
    )


def test_the_hint_is_what_probes_noticed_if_they_did() -> None:
    noticed = ProbeFinding(code="driver_mismatch", message="versions differ", hint="restart the machine")
    assert missing(capability(findings=(noticed,)), ("cuda",))[0].hint == "restart the machine"
    assert "unset it" in missing(capability(is_fake=True), ("cuda",))[0].hint
