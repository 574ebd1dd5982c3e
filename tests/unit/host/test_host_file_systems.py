from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.host.resources import file_system_of, mount_of

MOUNTS = """\
29 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw,discard
24 29 0:23 / /proc rw,relatime - proc proc rw
40 29 0:40 / /home rw master:2 shared:3 - btrfs /dev/sdb1 rw
41 40 0:41 / /home/me/my\\040disk rw - xfs /dev/sdc1 rw
42 40 0:42 / /home/me/my\\040disk rw - tmpfs tmpfs rw
broken line
43 29
"""


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/", ("/", "ext4")),
        ("/usr/lib", ("/", "ext4")),
        ("/home", ("/home", "btrfs")),
        ("/homes/x", ("/", "ext4")),
        ("/home/me/my disk/store", ("/home/me/my disk", "tmpfs")),
        ("/home/me/my diskette", ("/home", "btrfs")),
    ],
)
def test_the_deepest_mount_above_a_path_counts_and_of_several_the_latest(path: str, mount: tuple[str, str]) -> None:
    assert mount_of(MOUNTS, path) == mount


def test_no_list_of_mounts_means_that_nobody_says_the_type() -> None:
    assert mount_of("", "/home") == ("", "")


def test_a_path_that_is_not_there_yet_is_answered_by_what_is_above_it(tmp_path: Path) -> None:
    here = file_system_of(str(tmp_path))
    there = file_system_of(str(tmp_path / "a" / "b"))
    assert (there.mount_point, there.type, there.is_writable) == (here.mount_point, here.type, True)
    assert 0 < there.free_bytes <= there.total_bytes
    assert not there.is_read_only
    assert os.listdir(tmp_path) == []


def test_a_link_leads_to_where_the_files_are(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/proc")
    assert file_system_of(str(tmp_path / "link")).type in ("proc", "")


def test_without_the_kernels_list_the_room_is_known_all_the_same(tmp_path: Path) -> None:
    found = file_system_of(str(tmp_path), proc=str(tmp_path))
    assert (found.type, found.mount_point) == ("", "")
    assert found.total_bytes > 0
