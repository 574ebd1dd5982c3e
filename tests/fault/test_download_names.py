"""F59 to F61: names that lead out of the folder, things that are in the way, and links that somebody planted."""

from __future__ import annotations

import os

import pytest

from stoker.core.errors import BadAnswer, BadInput, Unavailable
from stoker.host.folders import clashes
from stoker.transfer.download.types import TargetFile
from tests.fault.download_lab import HALF, NAME, ONE, open_lab
from tests.servers.faulty import well

NAMES = {
    "up": "../model.bin",
    "up-inside": "a/../../model.bin",
    "only-up": "..",
    "here": ".",
    "absolute": "/etc/model.bin",
    "drive": "C:\\model.bin",
    "drive-relative": "C:model.bin",
    "unc": "\\\\server\\share\\model.bin",
    "backslash": "a\\..\\..\\model.bin",
    "nul": "model\0.bin",
    "newline": "model\n.bin",
    "256-bytes": "m" * 256,
    "256-bytes-of-two-byte-letters": "\u00e9" * 128,
    "device": "CON",
    "device-with-extension": "aux.txt",
    "device-in-a-folder": "com1/model.bin",
    "trailing-dot": "model.bin.",
    "trailing-space": "model.bin ",
    "empty": "",
    "empty-part": "a//model.bin",
    "stream": "model.bin:hidden",
}


@pytest.fixture
def lab(memory):
    with open_lab(memory / "out") as lab:
        yield lab


@pytest.mark.parametrize("name", NAMES)
def test_f59_a_name_that_could_lead_elsewhere_is_refused_before_anything_is_asked(lab, name, memory):
    before = sorted(memory.rglob("*"))
    with pytest.raises((BadAnswer, BadInput)):
        lab.fetch(ONE, landing=TargetFile(folder=str(lab.folder), name=NAMES[name]))
    assert lab.server.asked == []
    assert sorted(memory.rglob("*")) == before


def test_f59_a_name_of_255_bytes_has_room_for_what_lies_beside_it_or_is_refused(lab):
    landing = TargetFile(folder=str(lab.folder), name="m" * 255)
    code = lab.code(ONE, landing=landing)
    assert (code == 0) is os.path.exists(landing.path)
    assert code != 0 or (lab.folder / ("m" * 255)).read_bytes() == ONE.data


@pytest.mark.parametrize("pair", [("Model.bin", "model.BIN"), ("caf\u00e9", "cafe\u0301"), ("a", "a/b")])
def test_f59_names_that_are_one_file_elsewhere_are_found(pair):
    assert clashes(pair)


def test_a_name_may_lead_deeper(lab):
    lab.fetch(ONE, landing=TargetFile(folder=str(lab.folder), name="deep/er/model.bin"))
    assert (lab.folder / "deep/er/model.bin").read_bytes() == ONE.data


def test_f60_a_file_where_a_folder_is_needed_is_told_and_stays(lab):
    (lab.folder / "deep").write_bytes(b"mine")
    with pytest.raises((BadInput, Unavailable)):
        lab.fetch(ONE, landing=TargetFile(folder=str(lab.folder), name="deep/model.bin"))
    assert (lab.folder / "deep").read_bytes() == b"mine"


def test_f60_a_folder_where_the_file_belongs_is_told_and_stays(lab):
    (lab.path / "inner").mkdir(parents=True)
    with pytest.raises((BadInput, Unavailable)):
        lab.fetch(ONE)
    assert (lab.path / "inner").is_dir()


@pytest.mark.parametrize("suffix", ["", ".part", ".lock"], ids=["F61-target", "F61-partial", "F61-lock"])
@pytest.mark.parametrize("leads_to", ["file", "nothing"])
@pytest.mark.parametrize("had", [0, HALF], ids=["fresh", "resume"])
def test_a_planted_link_leads_no_write_out_of_the_folder(lab, memory, suffix, leads_to, had):
    outside = memory / "outside"
    if leads_to == "file":
        outside.write_bytes(b"precious" * 100)
    if had:
        lab.interrupt(had, ONE)
        lab.server.become(well)
    planted = lab.folder / f"{NAME}{suffix}"
    planted.unlink(missing_ok=True)
    planted.symlink_to(outside)
    if lab.code(ONE) == 0:
        assert not lab.path.is_symlink()
        assert lab.has() == ONE.data
    else:
        assert lab.path.is_symlink() or not lab.path.exists()
    assert (outside.read_bytes() if outside.exists() else None) == (b"precious" * 100 if leads_to == "file" else None)
    planted.unlink(missing_ok=True)
    lab.fetch(ONE)
    assert lab.has() == ONE.data


def test_f61_every_side_file_may_be_a_planted_link(lab, memory):
    """Whatever a run writes beside the file, found out by watching one, is no way out of the folder."""
    lab.interrupt(HALF, ONE)
    # The lock is there only while it is held.
    names = [*(path.name for path in lab.folder.iterdir()), f"{NAME}.lock"]
    assert len(names) >= 3
    for name in names:
        (lab.folder / name).unlink(missing_ok=True)
        (lab.folder / name).symlink_to(memory / f"outside-{name}")
    lab.server.become(well)
    assert (lab.code(ONE), lab.has()) in ((0, ONE.data), (16, None))
    assert list(memory.glob("outside-*")) == []


@pytest.mark.parametrize("place", ["deep", "deep/er"], ids=["F61-parent", "F61-grandparent"])
def test_a_link_planted_as_a_parent_leads_no_write_out_of_the_folder(lab, memory, place):
    outside = memory / "outside"
    outside.mkdir()
    planted = lab.folder / place
    planted.parent.mkdir(exist_ok=True)
    planted.symlink_to(outside)
    with pytest.raises((BadInput, Unavailable)):
        lab.fetch(ONE, landing=TargetFile(folder=str(lab.folder), name="deep/er/model.bin"))
    assert list(outside.iterdir()) == []


def test_f61_a_pipe_in_the_place_of_a_side_file_is_not_waited_for(lab):
    for suffix in (".part", ".lock", ""):
        (lab.folder / f"{NAME}{suffix}").unlink(missing_ok=True)
        os.mkfifo(lab.folder / f"{NAME}{suffix}")
        assert (lab.code(ONE) == 0) is lab.path.is_file()
        (lab.folder / f"{NAME}{suffix}").unlink(missing_ok=True)
        lab.path.unlink(missing_ok=True)
