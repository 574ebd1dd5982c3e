from __future__ import annotations

from stoker.core.device import Backend
from stoker.engine.device_gate import HIDDEN, device_variables
from tests.unit.engine.lab import card

NVIDIA = (card("GPU-1", index=0), card("MIG-2", index=1))
AMD = (card("GPU-a", index=2, backend=Backend.ROCM), card("GPU-b", index=0, backend=Backend.ROCM))


def test_cuda_devices_go_by_uuid() -> None:
    assert device_variables(NVIDIA, {}) == {"CUDA_VISIBLE_DEVICES": "GPU-1,MIG-2"}
    assert device_variables(NVIDIA[:1], {"CUDA_VISIBLE_DEVICES": "0,1"}) == {"CUDA_VISIBLE_DEVICES": "GPU-1"}


def test_hip_devices_go_by_number() -> None:
    assert device_variables(AMD, {}) == {"HIP_VISIBLE_DEVICES": "2,0"}


def test_a_variable_of_the_users_never_contradicts_what_was_given() -> None:
    assert device_variables(AMD[:1], {"CUDA_VISIBLE_DEVICES": "1,2"}) == {
        "HIP_VISIBLE_DEVICES": "2",
        "CUDA_VISIBLE_DEVICES": "2",
    }
    # HIP counts what ROCR leaves over.
    assert device_variables(AMD, {"ROCR_VISIBLE_DEVICES": "0,1,2"}) == {
        "ROCR_VISIBLE_DEVICES": "2,0",
        "HIP_VISIBLE_DEVICES": "0,1",
    }


def test_both_makers_in_one_machine_get_their_own_variable() -> None:
    assert device_variables((NVIDIA[0], AMD[0]), {}) == {"CUDA_VISIBLE_DEVICES": "GPU-1", "HIP_VISIBLE_DEVICES": "2"}


def test_who_shares_is_told_its_part() -> None:
    assert device_variables(NVIDIA[:1], {}, vram_bytes=7) == {
        "CUDA_VISIBLE_DEVICES": "GPU-1",
        "STOKER_VRAM_BYTES": "7",
    }


def test_other_devices_have_no_variable_and_cuda_stays_hidden() -> None:
    assert device_variables((card("M", backend=Backend.METAL),), {}) == HIDDEN
