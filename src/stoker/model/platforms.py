"""What a machine is to a Python environment: its system, its processor, its C library, and the Pythons on it.

Only nouns, and the words that manifests use for them: `linux-aarch64`, `linux-aarch64-cp310`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from stoker.model.frozen import frozen

_WORD = re.compile(r"(linux|macos|windows)-([a-z0-9_]{2,20})(?:-cp(3)(\d{1,2}))?", re.ASCII)
_SYSTEMS = {"darwin": "macos", "macos": "macos", "win32": "windows", "windows": "windows"}
_MACHINES = {"arm64": "aarch64", "amd64": "x86_64", "x64": "x86_64"}
PLATFORM_RULE = "such as linux-aarch64, linux-x86_64 or linux-aarch64-cp310"


@frozen
class Platform:
    """One machine, as far as wheels and interpreters tell machines apart."""

    system: str
    """`linux`, `macos`, `windows`."""
    machine: str
    """`x86_64`, `aarch64`."""
    libc: str = ""
    """`glibc 2.36`, `musl 1.2`; empty: nobody knows."""
    pythons: tuple[str, ...] = ()
    """Versions of the interpreters that environments may be made with: `3.11.7`; the preferred one first."""

    @property
    def name(self) -> str:
        """`linux-aarch64`."""
        return f"{self.system}-{self.machine}"

    @property
    def text(self) -> str:
        """`linux-aarch64-cp311`, by its preferred Python."""
        return f"{self.name}-{tag_of(self.pythons[0])}" if self.pythons else self.name

    def is_named(self, word: str) -> bool:
        """Say whether a word of a manifest means this machine."""
        return word == self.name or any(word == f"{self.name}-{tag_of(version)}" for version in self.pythons)


def platform_of(*, system: str, machine: str, libc: str = "", pythons: Iterable[str] = ()) -> Platform:
    """Give a machine's platform from facts, however its own system spells them."""
    system, machine = system.lower(), machine.lower()
    return Platform(
        system=_SYSTEMS.get(system, system),
        machine=_MACHINES.get(machine, machine),
        libc=libc,
        pythons=tuple(dict.fromkeys(version for version in pythons if version)),
    )


def is_platform(word: str) -> bool:
    """Say whether a word can name a platform."""
    return _WORD.fullmatch(word) is not None


def python_of(word: str) -> str:
    """Give the version that a platform's word asks for: `3.10` of `linux-aarch64-cp310`; empty: any."""
    found = _WORD.fullmatch(word)
    return f"{found[3]}.{found[4]}" if found is not None and found[4] else ""


def tag_of(version: str) -> str:
    """Give the tag of a Python's version: `cp311` of `3.11.7`."""
    return "cp" + "".join(version.split(".")[:2])
