from __future__ import annotations

from pathlib import Path

import pytest

from stoker.host import resources
from stoker.host.resources import mac_available_bytes, read_vm_stat

LISTING = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               20000.
Pages active:                            900000.
Pages inactive:                          400000.
Pages speculative:                         1000.
Pages throttled:                              0.
Pages wired down:                        200000.
Pages purgeable:                           5000.
"Translation faults":                  98000000.
File-backed pages:                       300000.
"""


def test_pages_that_nobody_needs_now_are_available() -> None:
    assert read_vm_stat(LISTING) == 421_000 * 16384
    assert read_vm_stat(LISTING.replace("16384", "4096").replace("Pages speculative:", "Pages other:")) == (
        420_000 * 4096
    )


@pytest.mark.parametrize(
    "text",
    ["", "garbage", LISTING.replace("page size", "taille"), LISTING[:90], LISTING.replace("400000.", "many.")],
    ids=["nothing", "garbage", "no page size", "cut off", "no number"],
)
def test_what_is_no_whole_listing_gives_nothing(text: str) -> None:
    assert read_vm_stat(text) is None


def test_the_program_is_asked_and_may_fail_in_any_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "vm_stat"
    monkeypatch.setattr(resources, "_PROGRAM", str(program))
    monkeypatch.setattr(resources, "_LIMIT_S", 0.2)
    assert mac_available_bytes() is None
    for script, size in ((f"echo '{LISTING}'", 421_000 * 16384), ("exit 1", None), ("exec sleep 60", None)):
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        assert mac_available_bytes() == size


def test_only_a_mac_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "mac_available_bytes", lambda: 7)
    assert resources.memory_available_bytes(str(tmp_path)) is None
    monkeypatch.setattr("sys.platform", "darwin")
    assert resources.memory_available_bytes(str(tmp_path)) == 7
