import os
from pathlib import Path

import pytest

from stoker.core.errors import NoSpace
from stoker.host.folders import AnchoredFolder, write_unnamed
from tests.leaks import left_open, open_files
from tests.unit.host.real_mounts import small_disk


def test_files_without_names_hold_their_bytes_and_are_known_as_temporary(tmp_path: Path):
    contents = [b"one", b"", b"three" * 1000]
    with AnchoredFolder.open(str(tmp_path)) as folder:
        temps = write_unnamed(folder, contents, 0o444)
    assert [(tmp_path / temp).read_bytes() for temp in temps] == contents
    assert sorted(os.listdir(tmp_path)) == sorted(temps)
    assert all(temp.startswith(".stoker-tmp-") for temp in temps)
    assert not any((tmp_path / temp).stat().st_mode & 0o222 for temp in temps)


def test_nothing_to_write_is_nothing_written(tmp_path: Path):
    with AnchoredFolder.open(str(tmp_path)) as folder:
        assert write_unnamed(folder, []) == []
    assert os.listdir(tmp_path) == []


def test_on_a_full_disk_none_is_left(tmp_path: Path):
    with small_disk(tmp_path / "disk", "size=64k") as disk:
        with AnchoredFolder.open(str(disk)) as folder, pytest.raises(NoSpace):
            write_unnamed(folder, [bytes(30_000)] * 4)
        assert os.listdir(disk) == []


def test_descriptors_are_given_back(tmp_path: Path):
    before = open_files()
    with AnchoredFolder.open(str(tmp_path)) as folder:
        write_unnamed(folder, [b"x"] * 50)
    assert left_open(before) == set()
