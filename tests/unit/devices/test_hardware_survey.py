from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import BinaryIO

import pytest

from stoker.core.device import TriState
from stoker.core.errors import ContainmentUnavailable
from stoker.devices.checkup import MachineSurvey, Reflink, survey
from stoker.host.containment.box import Mechanism, NoContainment
from stoker.host.containment.mechanisms import ContainmentChoice
from stoker.host.writers import reflink


def bare() -> ContainmentChoice:
    return ContainmentChoice(NoContainment(), tried=((Mechanism.SYSTEMD, "there is no bus"),))


def look(places: dict[str, str], *, by: Reflink = reflink, ports: tuple[int, ...] = ()) -> MachineSurvey:
    return survey(places, contain=bare, reflink=by, ports=ports)


def test_folders_on_one_file_system_are_one_disk_and_nothing_is_made(tmp_path: Path) -> None:
    places = {"store": str(tmp_path / "home" / "store"), "runs": str(tmp_path / "home" / "runs")}
    (found,) = look(places).disks
    assert found.names == ("store", "runs")
    assert found.file_system is not None
    assert found.file_system.free_bytes > 0
    assert found.file_system.is_writable
    assert os.listdir(tmp_path) == []


def test_a_folder_that_can_not_be_made_is_a_disk_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    disks = look({"store": str(tmp_path / "file" / "store"), "runs": str(tmp_path / "runs")}).disks
    assert [(one.names, one.file_system and one.file_system.is_writable) for one in disks] == [
        (("store",), False),
        (("runs",), True),
    ]


@pytest.mark.parametrize("does", [True, False])
def test_whether_copies_share_blocks_is_tried_and_leaves_nothing(tmp_path: Path, does: bool) -> None:
    tried: list[bytes] = []

    def clone(source: BinaryIO, target: BinaryIO) -> bool:
        source.seek(0)
        tried.append(source.read(1))
        return does

    (found,) = look({"store": str(tmp_path / "not" / "there")}, by=clone).disks
    assert found.shares_blocks.is_yes is does
    assert tried == [b"\0"]
    assert os.listdir(tmp_path) == []


def test_containment_is_told_with_what_is_stronger() -> None:
    told = look({}).containing
    assert (told.mechanism, told.stronger) == ("bare", (("systemd", "there is no bus"),))
    assert "NOT limited" in told.warning


def test_containment_that_was_named_and_does_not_work_is_told_not_raised() -> None:
    def broken() -> ContainmentChoice:
        raise ContainmentUnavailable("there is no bus", hint="start one")

    told = survey({}, contain=broken, reflink=reflink, ports=()).containing
    assert (told.mechanism, told.warning, told.hint) == ("", "there is no bus", "start one")


@pytest.mark.timing
def test_a_port_is_free_until_somebody_listens() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        server.listen()
        assert look({}, ports=(port,)).ports[port].verdict is TriState.NO
    assert look({}, ports=(port,)).ports[port].is_yes


def test_the_clock_has_an_answer_that_says_why_unless_it_is_yes() -> None:
    clock = look({}).clock
    assert clock.is_yes or clock.why
