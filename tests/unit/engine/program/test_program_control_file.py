from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from stoker.engine.runners.program.launch import ControlFile, remove_if_odd


def test_each_look_gives_what_is_new(tmp_path: Path) -> None:
    path = tmp_path / "control"
    control = ControlFile(str(path))
    assert control.fresh() == b""
    path.write_bytes(b"one\n")
    assert control.fresh() == b"one\n"
    assert control.fresh() == b""
    with path.open("ab") as file:
        file.write(b"two\n")
    assert list(control.rest()) == [b"two\n"]


def test_much_is_given_in_parts_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "control"
    data = os.urandom(3_000_000)
    path.write_bytes(data)
    control = ControlFile(str(path))
    first = control.fresh()
    assert len(first) < len(data)
    assert first + b"".join(control.rest()) == data


def test_an_endless_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "control"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert sum(map(len, ControlFile(str(path)).rest())) < 1 << 25


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("x" * 5000)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


@pytest.mark.parametrize("make", [_pipe, _folder, _endless, _link])
def test_whatever_a_program_puts_in_its_place_nobody_waits_and_it_is_removed(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "control"
    make(path)
    control = ControlFile(str(path))
    assert control.fresh() == b""
    assert list(control.rest()) == []
    assert remove_if_odd(str(path))
    assert not os.path.lexists(path)
    assert Path("/etc/passwd").exists()
    assert not remove_if_odd(str(path))


def test_a_file_stays(tmp_path: Path) -> None:
    (tmp_path / "control").write_text("x")
    assert not remove_if_odd(str(tmp_path / "control"))
    assert (tmp_path / "control").exists()
