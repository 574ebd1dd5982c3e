import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import LocalFile
from stoker.transfer.download.types import TargetFile
from stoker.transfer.hub.listing import RepoFile
from stoker.transfer.hub.repository import LARGEST_BYTES, FileGroup, batches, is_small, write_together


def group(path: str, size_bytes: int | None = 10) -> FileGroup:
    return (RepoFile(path=path, size_bytes=size_bytes, git_sha1="a" * 40),)


@given(st.lists(st.integers(0, 3 * LARGEST_BYTES), max_size=80), st.integers(1, 9))
def test_divided_work_is_all_of_it_once_large_files_first(sizes: list[int], workers: int):
    groups = [group(str(number), size_bytes) for number, size_bytes in enumerate(sizes)]
    divided = batches(groups, workers)
    flat = [one for batch in divided for one in batch]
    assert sorted(flat, key=id) == sorted(groups, key=id)
    assert all(divided)
    large = [one[0].size_bytes for one in flat if (one[0].size_bytes or 0) > LARGEST_BYTES]
    assert large == sorted(large, key=lambda size: -(size or 0))
    assert flat[: len(large)] == [one for one in flat if (one[0].size_bytes or 0) > LARGEST_BYTES]


def test_few_small_files_keep_all_workers_busy():
    assert len(batches([group(str(number)) for number in range(16)], 8)) == 8


def test_a_file_of_unknown_size_goes_first_and_alone():
    divided = batches([group("a"), group("b", None), group("c")], 1)
    assert [[one[0].path for one in batch] for batch in divided] == [["b"], ["a", "c"]]


def test_only_a_file_with_a_size_and_a_digest_is_small():
    assert is_small(RepoFile(path="a", size_bytes=0, git_sha1="a" * 40))
    assert not is_small(RepoFile(path="a", size_bytes=3))
    assert not is_small(RepoFile(path="a", git_sha1="a" * 40))
    assert not is_small(RepoFile(path="a", size_bytes=LARGEST_BYTES + 1, git_sha1="a" * 40))


def test_files_written_together_are_all_there_with_their_mode(tmp_path: Path):
    files = [(TargetFile(folder=str(tmp_path), name=f"d{n % 3}/f{n}"), b"%d" % n) for n in range(20)]
    write_together(files, mode=0o444)
    for landing, data in files:
        assert Path(landing.path).read_bytes() == data
        assert not os.stat(landing.path).st_mode & 0o222
    assert sorted(os.listdir(tmp_path / "d0")) == sorted(f"f{n}" for n in range(0, 20, 3))


def test_a_file_written_over_another_replaces_it_and_a_link_itself(tmp_path: Path):
    (tmp_path / "elsewhere").write_bytes(b"old")
    (tmp_path / "a").symlink_to("elsewhere")
    write_together([(TargetFile(folder=str(tmp_path), name="a"), b"new")], mode=0o644)
    assert not (tmp_path / "a").is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == b"old"


def test_where_one_of_several_can_not_be_written_no_temporary_file_is_left(tmp_path: Path):
    (tmp_path / "b").mkdir()
    files = [(TargetFile(folder=str(tmp_path), name=name), b"x") for name in ("a", "b", "c")]
    with pytest.raises(LocalFile):
        write_together(files, mode=0o644)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize(("open_files", "most"), [(1024, 32), (128, 8), (64, 1), (32, 1)])
def test_files_written_together_are_no_more_than_may_be_open(open_files: int, most: int):
    divided = batches([group(str(number)) for number in range(1000)], 8, open_files=open_files)
    assert max(map(len, divided)) == most
