from __future__ import annotations

import pytest

from stoker.core.device import Backend
from stoker.devices.probes.visibility import VisibilityDevice, read_list, visible_answers

UUIDS = ("GPU-8e7a0000", "GPU-8e7b1111", "GPU-11a22222", "GPU-55555555")


def cuda(*names: str) -> list[VisibilityDevice]:
    names = names or ("RTX 4090",) * len(UUIDS)
    return [
        VisibilityDevice(uuid=uuid, backend=Backend.CUDA, name=name) for uuid, name in zip(UUIDS, names, strict=False)
    ]


def seen(candidates: list[VisibilityDevice], **environment: str) -> str:
    """Return the verdicts, a letter each."""
    return "".join(answer.verdict[0] for answer in visible_answers(candidates, environment))


@pytest.mark.parametrize(
    ("value", "places"),
    [
        ("", ()),
        (" ", ()),
        ("2", (2,)),
        ("3,1", (3, 1)),
        (" 0 , 2 ", (0, 2)),
        ("-1", ()),
        ("0,-1,2", (0,)),
        ("0,9,1", (0,)),
        ("0,0,1", ()),
        ("0,1,0", ()),
        ("1gpu2,2ampere", (1, 2)),
        ("0,,1", (0,)),
        ("NoDevFiles", ()),
        ("99999999999999999999", ()),
        ("GPU-11a", (2,)),
        ("GPU-11a22222,GPU-5", (2, 3)),
        ("gpu-11A", (2,)),
        ("GPU-8e7", ()),
        ("GPU-8e7a,GPU-8e7a0000", ()),
        ("GPU-11a,0", (2,)),
        ("0,GPU-11a", (0,)),
        ("GPU-unknown,GPU-11a", ()),
    ],
)
def test_a_list_is_read_as_cuda_reads_it(value: str, places: tuple[int, ...]) -> None:
    listed = read_list(value, UUIDS)
    assert listed.places == places
    assert bool(listed.why) is (len(places) != len(value.split(",")) or not value.strip())


def test_without_variables_everything_is_seen() -> None:
    assert seen(cuda()) == "yyyy"


def test_set_and_empty_means_none() -> None:
    assert seen(cuda(), CUDA_VISIBLE_DEVICES="") == "nnnn"


def test_a_hidden_device_says_by_what() -> None:
    answers = visible_answers(cuda(), {"CUDA_VISIBLE_DEVICES": "0,-1,2"})
    assert [answer.is_yes for answer in answers] == [True, False, False, False]
    assert answers[2].why == "hidden by CUDA_VISIBLE_DEVICES='0,-1,2': '-1' names no device and ends the list"


def test_numbers_among_unequal_devices_mean_what_only_cuda_knows() -> None:
    unequal = cuda("RTX 4090", "GTX 1080", "GTX 1080", "GTX 1080")
    assert seen(unequal, CUDA_VISIBLE_DEVICES="0") == "uuuu"
    assert seen(unequal, CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == "ynnn"
    assert seen(unequal, CUDA_VISIBLE_DEVICES="3,2,1,0") == "yyyy"
    assert seen(unequal, CUDA_VISIBLE_DEVICES="-1") == "nnnn"
    assert seen(unequal, CUDA_VISIBLE_DEVICES="GPU-8e7a") == "ynnn"
    assert seen(cuda(), CUDA_VISIBLE_DEVICES="0") == "ynnn"


def test_parts_are_named_by_uuid_and_seen_with_their_whole() -> None:
    parts = [VisibilityDevice(uuid=f"MIG-{number}", backend=Backend.CUDA, parent=UUIDS[0]) for number in (7, 8)]
    divided = [cuda()[0], *parts, cuda()[1]]
    assert seen(divided, CUDA_VISIBLE_DEVICES="MIG-8") == "nnyn"
    assert seen(divided, CUDA_VISIBLE_DEVICES="0") == "yyyn"
    assert seen(divided, CUDA_VISIBLE_DEVICES="1") == "nnny"


@pytest.mark.parametrize(
    ("value", "letters"),
    [("all", "yyyy"), ("none", "nnnn"), ("void", "nnnn"), ("", "nnnn"), ("3", "yyyy"), ("GPU-11a", "nnyn")],
)
def test_a_containers_variable_counts_where_it_can_mean_something_inside(value: str, letters: str) -> None:
    assert seen(cuda(), NVIDIA_VISIBLE_DEVICES=value) == letters


def test_both_variables_must_leave_a_device() -> None:
    letters = seen(cuda(), NVIDIA_VISIBLE_DEVICES="GPU-11a,GPU-555", CUDA_VISIBLE_DEVICES="GPU-8e7a,GPU-11a")
    assert letters == "nnyn"


def rocm() -> list[VisibilityDevice]:
    return [VisibilityDevice(uuid=f"GPU-{number:016x}", backend=Backend.ROCM) for number in (1, 2, 3)]


def test_rocm_counts_in_what_the_driver_variable_leaves() -> None:
    assert seen(rocm(), ROCR_VISIBLE_DEVICES="1,2", HIP_VISIBLE_DEVICES="0") == "nyn"
    assert seen(rocm(), ROCR_VISIBLE_DEVICES="GPU-0000000000000003") == "nny"
    assert seen(rocm(), HIP_VISIBLE_DEVICES="") == "nnn"


def test_rocm_takes_cudas_variable_where_its_own_is_not_set() -> None:
    assert seen(rocm(), CUDA_VISIBLE_DEVICES="1") == "nyn"
    assert seen(rocm(), CUDA_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="2") == "nny"


def test_each_vendors_variables_are_its_own() -> None:
    both = [*cuda(), *rocm(), VisibilityDevice(uuid="LOCAL-1", backend=Backend.METAL)]
    assert seen(both, HIP_VISIBLE_DEVICES="") == "yyyynnny"
    assert seen(both, CUDA_VISIBLE_DEVICES="0", HIP_VISIBLE_DEVICES="0") == "ynnnynny"
