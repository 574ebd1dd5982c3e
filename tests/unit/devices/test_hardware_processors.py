from __future__ import annotations

import pytest

from stoker.devices.detection import Processors, read_cpuinfo, read_sysctl

X86 = """\
processor\t: {number}
vendor_id\t: GenuineIntel
model name\t: Intel(R) Core(TM)  i7-8700 CPU @ 3.20GHz
physical id\t: {package}
siblings\t: 4
core id\t\t: {core}
cpu cores\t: 2
"""
ARM = """\
processor\t: {number}
BogoMIPS\t: 243.75
CPU implementer\t: {maker}
CPU architecture: 8
CPU part\t: {part}
"""


def x86(*pairs: tuple[int, int]) -> list[str]:
    return [X86.format(number=number, package=package, core=core) for number, (package, core) in enumerate(pairs)]


def test_cores_are_distinct_pairs_of_package_and_core() -> None:
    read = read_cpuinfo("\n".join(x86((0, 0), (0, 1), (0, 0), (0, 1), (1, 0), (1, 1))) + "\n")
    assert read == Processors(cores=4, threads=6, name="Intel(R) Core(TM) i7-8700 CPU @ 3.20GHz")


@pytest.mark.parametrize("end", ["", "\n", "\n\n\n"], ids=["none", "newline", "blank"])
def test_the_last_core_counts_without_a_blank_line_behind_it(end: str) -> None:
    text = "\n".join(x86((0, 0), (0, 1))).rstrip("\n") + end
    assert read_cpuinfo(text).cores == 2


def test_records_without_blank_lines_between_them_are_told_apart() -> None:
    assert read_cpuinfo("".join(x86((0, 0), (0, 1), (0, 2)))).cores == 3


def test_a_listing_without_pairs_gives_no_cores_but_the_threads() -> None:
    text = "\n".join(ARM.format(number=number, maker="0x41", part="0xd0c") for number in range(3))
    assert read_cpuinfo(text) == Processors(cores=0, threads=3, name="Neoverse-N1")


def test_an_unknown_arm_core_is_named_by_its_numbers() -> None:
    assert read_cpuinfo(ARM.format(number=0, maker="0x99", part="0x001")).name == "Arm 0x99/0x001"


@pytest.mark.parametrize("text", ["", "\n\n", "garbage", ":::\n\0", "processor"])
def test_what_is_no_listing_gives_nothing(text: str) -> None:
    assert read_cpuinfo(text).cores == 0


def test_what_macos_says_is_read() -> None:
    said = "machdep.cpu.brand_string: Apple M2 Max\nhw.physicalcpu: 12\nhw.logicalcpu: 12\n"
    assert read_sysctl(said) == Processors(cores=12, threads=12, name="Apple M2 Max")
    assert read_sysctl("sysctl: unknown oid 'hw.physicalcpu'\n") == Processors()
