"""The processors of a machine, from what its kernel lists: how many physical cores, how many threads, which make.

Pure: the listing's text is handed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stoker.model.frozen import frozen

# Kernels on Arm give numbers where others give a name; these are the ones that people train on.
_ARM = {
    ("0x41", "0xd03"): "Cortex-A53",
    ("0x41", "0xd07"): "Cortex-A57",
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse-N1",
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd42"): "Cortex-A78AE",
    ("0x41", "0xd49"): "Neoverse-N2",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x4e", "0x004"): "Carmel",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1a",
}


@frozen
class Processors:
    """What a listing says; zero and empty where it says nothing."""

    cores: int = 0
    """Physical ones: distinct pairs of package and core."""
    threads: int = 0
    name: str = ""


def read_cpuinfo(text: str) -> Processors:
    """Read the kernel's listing; a last record without a blank line behind it counts like the others."""
    pairs = set()
    threads, name = 0, ""
    for record in _records(text):
        threads += "processor" in record
        name = name or record.get("model name", "") or _arm_name(record)
        if "physical id" in record and "core id" in record:
            pairs.add((record["physical id"], record["core id"]))
    return Processors(cores=len(pairs), threads=threads, name=" ".join(name.split()))


def read_sysctl(text: str) -> Processors:
    """Read what macOS says to `sysctl machdep.cpu.brand_string hw.physicalcpu hw.logicalcpu`. Untested on one."""
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}
    return Processors(
        cores=_count(said.get("hw.physicalcpu", "")),
        threads=_count(said.get("hw.logicalcpu", "")),
        name=said.get("machdep.cpu.brand_string", ""),
    )


def _records(text: str) -> Iterator[Mapping[str, str]]:
    record: dict[str, str] = {}
    for line in [*text.splitlines(), ""]:
        key, colon, value = line.partition(":")
        if colon:
            # Some kernels list all processors without a blank line between them.
            if key.strip() == "processor" and "processor" in record:
                yield record
                record = {}
            record[key.strip()] = value.strip()
        elif not line.strip() and record:
            yield record
            record = {}


def _arm_name(record: Mapping[str, str]) -> str:
    maker, part = record.get("CPU implementer", ""), record.get("CPU part", "")
    if not maker or not part:
        return ""
    return _ARM.get((maker.lower(), part.lower()), f"Arm {maker}/{part}")


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
