"""Materialising: the bytes under another name, whole, as cheaply as it goes."""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
from pathlib import Path

import pytest

from stoker.core.errors import LocalFile, NoPermission
from stoker.host import writers as module
from stoker.host.folders import AnchoredFolder
from stoker.host.writers import MaterialiseMethod, copy_bytes

DATA = random.Random(5).randbytes(3_000_001)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(DATA)
    path.chmod(0o444)
    return path


def materialise(
    source: str, target: str, *, may_share: bool = False, mode: int = 0o644, is_durable: bool = True
) -> MaterialiseMethod:
    with AnchoredFolder.open(os.path.dirname(target), makes=False) as folder:
        name = os.path.basename(target)
        return module.materialise(source, folder, name, may_share=may_share, mode=mode, is_durable=is_durable)


def shares_blocks(folder: Path) -> bool:
    (folder / "one").write_bytes(b"1")
    with (folder / "one").open("rb") as one, (folder / "two").open("wb") as two:
        how = copy_bytes(one, two)
    for name in ("one", "two"):
        (folder / name).unlink()
    return how is MaterialiseMethod.REFLINK


@pytest.mark.parametrize("is_durable", [True, False])
@pytest.mark.parametrize("mode", [0o644, 0o755, 0o600])
def test_a_copy_is_a_file_of_its_own(source: Path, tmp_path: Path, mode: int, is_durable: bool) -> None:
    target = tmp_path / "target"
    previous = os.umask(0o077)
    try:
        how = materialise(str(source), str(target), mode=mode, is_durable=is_durable)
    finally:
        os.umask(previous)
    assert how in {MaterialiseMethod.REFLINK, MaterialiseMethod.KERNEL_COPY, MaterialiseMethod.COPY}
    assert target.read_bytes() == DATA
    assert target.stat().st_mode & 0o7777 == mode
    target.write_bytes(b"edited")
    assert source.read_bytes() == DATA
    assert source.stat().st_mode & 0o7777 == 0o444
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


@pytest.mark.parametrize("is_durable", [True, False])
def test_where_it_may_be_shared_it_costs_no_space(source: Path, tmp_path: Path, is_durable: bool) -> None:
    target = tmp_path / "target"
    how = materialise(str(source), str(target), may_share=True, mode=0o755, is_durable=is_durable)
    assert target.read_bytes() == DATA
    if shares_blocks(tmp_path):
        assert how is MaterialiseMethod.REFLINK
    else:
        assert how is MaterialiseMethod.HARDLINK
        assert target.samefile(source)
        # Its mode is the source's: it is one file.
        assert source.stat().st_mode & 0o7777 == 0o444
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_doing_it_twice_leaves_one_name(source: Path, tmp_path: Path) -> None:
    for _ in range(2):
        materialise(str(source), str(tmp_path / "target"), may_share=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "target"]


def test_what_lay_under_the_name_is_replaced_and_a_link_not_followed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"mine")
    target = tmp_path / "target"
    target.symlink_to("precious")
    materialise(str(source), str(target))
    assert not target.is_symlink()
    assert target.read_bytes() == DATA
    assert (tmp_path / "precious").read_bytes() == b"mine"


def test_across_file_systems_it_is_copied(source: Path) -> None:
    others = [
        place
        for place in ("/dev/shm", tempfile.gettempdir(), os.path.dirname(__file__))
        if os.path.isdir(place) and os.stat(place).st_dev != os.stat(source).st_dev
    ]
    if not others:
        pytest.skip("there is no second file system here")
    folder = Path(tempfile.mkdtemp(prefix="materialise-", dir=others[0]))
    try:
        assert materialise(str(source), str(folder / "target"), may_share=True) in {
            MaterialiseMethod.KERNEL_COPY,
            MaterialiseMethod.COPY,
        }
        assert (folder / "target").read_bytes() == DATA
        assert os.listdir(folder) == ["target"]
    finally:
        shutil.rmtree(folder)


def test_an_empty_file_is_materialised(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"")
    assert materialise(str(tmp_path / "source"), str(tmp_path / "target")) in set(MaterialiseMethod)
    assert (tmp_path / "target").read_bytes() == b""


def test_where_the_kernel_can_not_copy_we_do(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def gives_up_half_way(from_fd: int, to_fd: int, count: int) -> int:
        if done:
            raise OSError(errno.EXDEV, "not between these two")
        done.append(os.write(to_fd, os.read(from_fd, 1_000_000)))
        return done[0]

    monkeypatch.setattr(module, "reflink", lambda *_: False)
    monkeypatch.setattr(os, "copy_file_range", gives_up_half_way)
    assert materialise(str(source), str(tmp_path / "target")) is MaterialiseMethod.COPY
    assert (tmp_path / "target").read_bytes() == DATA


def test_where_blocks_can_be_shared_they_are(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call itself is tried where the file system has it; here only that it comes first and is enough."""

    def clone(target: int, request: int, original: int) -> int:
        assert request == 0x40049409
        os.write(target, os.pread(original, len(DATA), 0))
        return 0

    monkeypatch.setattr("stoker.host.writers.fcntl.ioctl", clone)
    for may_share in (True, False):
        assert materialise(str(source), str(tmp_path / "target"), may_share=may_share) is MaterialiseMethod.REFLINK
        assert (tmp_path / "target").read_bytes() == DATA
        assert (tmp_path / "target").stat().st_nlink == 1


def test_a_source_that_changes_meanwhile_is_refused(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_and_touch(from_fd: int, to_fd: int, count: int) -> int:
        source.chmod(0o644)
        with source.open("ab") as file:
            file.write(b"!")
        return 0

    monkeypatch.setattr(os, "copy_file_range", copy_and_touch)
    monkeypatch.setattr(module, "reflink", lambda *_: False)
    with pytest.raises(LocalFile, match="changed"):
        materialise(str(source), str(tmp_path / "target"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_a_source_that_only_gets_another_name_meanwhile_is_copied(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy_beside_others(from_fd: int, to_fd: int, count: int) -> int:
        if not (tmp_path / "another").exists():
            os.link(source, tmp_path / "another")
        return 0

    monkeypatch.setattr(os, "copy_file_range", copy_beside_others)
    monkeypatch.setattr(module, "reflink", lambda *_: False)
    assert materialise(str(source), str(tmp_path / "target")) is MaterialiseMethod.COPY
    assert (tmp_path / "target").read_bytes() == DATA
    assert sorted(path.name for path in tmp_path.iterdir()) == ["another", "source", "target"]


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "missing", "."):
        with pytest.raises(LocalFile):
            materialise(str(tmp_path / name), str(tmp_path / "target"))
    assert not (tmp_path / "target").exists()


def test_where_nothing_can_be_written_nothing_is_left(source: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/target").mkdir()
    (tmp_path / "folder/target/full").mkdir()
    with pytest.raises(LocalFile):
        materialise(str(source), str(tmp_path / "folder/target"))
    with pytest.raises((LocalFile, NoPermission)):
        materialise(str(source), str(tmp_path / "nowhere/target"))
    assert os.listdir(tmp_path / "folder") == ["target"]


@pytest.mark.parametrize("may_share", [True, False])
def test_a_folder_that_a_link_replaces_gets_its_file_and_what_the_link_leads_to_none(
    source: Path, tmp_path: Path, may_share: bool
) -> None:
    (tmp_path / "meant").mkdir()
    (tmp_path / "elsewhere").mkdir()
    with AnchoredFolder.open(str(tmp_path / "meant")) as folder:
        (tmp_path / "meant").rename(tmp_path / "moved")
        (tmp_path / "meant").symlink_to("elsewhere")
        module.materialise(str(source), folder, "target", may_share=may_share)
    assert os.listdir(tmp_path / "elsewhere") == []
    assert (tmp_path / "moved/target").read_bytes() == DATA
