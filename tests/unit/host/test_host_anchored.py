from __future__ import annotations

import os
import stat

import pytest

from stoker.core.errors import LocalFile, NoPermission, NoSpace
from stoker.host.durable import write_all
from stoker.host.folders import AnchoredFolder, close_home, make_home, make_state
from tests.unit.host.real_mounts import small_disk


@pytest.fixture
def folder(tmp_path):
    with AnchoredFolder.open(str(tmp_path / "base"), "a/b") as opened:
        yield opened


@pytest.fixture
def outside(tmp_path):
    path = tmp_path / "outside"
    path.mkdir()
    return path


def _write(descriptor, data):
    try:
        write_all(descriptor, data, 0)
    finally:
        os.close(descriptor)


def test_folders_that_are_missing_are_made(folder, tmp_path):
    assert (tmp_path / "base" / "a" / "b").is_dir()
    assert folder.path == str(tmp_path / "base" / "a" / "b")


def test_nothing_is_made_where_nothing_is_to_be_made(tmp_path):
    with pytest.raises(LocalFile) as missing:
        AnchoredFolder.open(str(tmp_path / "base"), "a", makes=False)
    assert missing.value.data["errno"] == "ENOENT"
    assert not (tmp_path / "base").exists()


def test_a_link_in_the_folder_that_a_person_named_is_followed(tmp_path, outside):
    (tmp_path / "link").symlink_to(outside)
    with AnchoredFolder.open(str(tmp_path / "link"), "a") as folder:
        folder.write_file("f", b"x")
    assert (outside / "a" / "f").read_bytes() == b"x"


@pytest.mark.parametrize("below", ["evil", "evil/deeper", "a/evil"])
def test_a_link_below_that_folder_is_refused(tmp_path, outside, below):
    (tmp_path / "base" / "a").mkdir(parents=True)
    (tmp_path / "base" / "evil").symlink_to(outside)
    (tmp_path / "base" / "a" / "evil").symlink_to(outside)
    with pytest.raises(LocalFile):
        AnchoredFolder.open(str(tmp_path / "base"), below)
    assert list(outside.iterdir()) == []


def test_a_file_where_a_folder_is_needed_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"file")
    with pytest.raises(LocalFile, match="not a folder"):
        AnchoredFolder.open(str(tmp_path), "a/b")


def test_a_folder_that_was_swapped_for_a_link_is_written_where_it_was(folder, tmp_path, outside):
    (tmp_path / "base" / "a").rename(tmp_path / "moved")
    (tmp_path / "base" / "a").symlink_to(outside)
    folder.write_file("f", b"x")
    assert (tmp_path / "moved" / "b" / "f").read_bytes() == b"x"
    assert list(outside.iterdir()) == []


def test_a_link_under_a_name_is_replaced_and_its_target_untouched(folder, outside):
    target = outside / "victim"
    target.write_bytes(b"mine")
    link = os.path.join(folder.path, "f")
    os.symlink(target, link)
    assert folder.open_file("f") is None
    assert folder.open_file("f", writes=True) is None
    _write(folder.create_file("f"), b"new")
    assert target.read_bytes() == b"mine"
    assert not os.path.islink(link)
    os.unlink(link)
    os.symlink(target, link)
    folder.write_file("f", b"whole")
    assert target.read_bytes() == b"mine"
    assert folder.read_file("f", 100) == b"whole"


def test_a_pipe_under_a_name_is_neither_waited_for_nor_kept(folder):
    os.mkfifo(os.path.join(folder.path, "f"))
    assert folder.open_file("f") is None
    assert folder.open_file("f", writes=True) is None
    assert folder.read_file("f", 100) is None
    _write(folder.create_file("f"), b"x")
    assert stat.S_ISREG(os.lstat(os.path.join(folder.path, "f")).st_mode)


def test_a_file_with_a_second_name_is_read_but_not_written_to(folder, outside):
    target = outside / "victim"
    target.write_bytes(b"mine")
    os.link(target, os.path.join(folder.path, "f"))
    assert folder.open_file("f", writes=True) is None
    assert folder.read_file("f", 100) == b"mine"
    _write(folder.create_file("f"), b"new")
    assert target.read_bytes() == b"mine"


def test_a_folder_under_a_name_is_refused(folder):
    os.mkdir(os.path.join(folder.path, "f"))
    assert folder.open_file("f") is None
    for act in (folder.create_file, folder.remove, lambda name: folder.write_file(name, b"x")):
        with pytest.raises((LocalFile, NoPermission)):
            act("f")
    assert folder.names() == ["f"]


def test_a_larger_file_than_allowed_is_not_read(folder):
    folder.write_file("f", b"12345")
    assert folder.read_file("f", 5) == b"12345"
    assert folder.read_file("f", 4) is None
    assert folder.read_file("missing", 4) is None


def test_names_are_looked_at_renamed_and_removed(folder):
    folder.write_file("f", b"x", 0o600)
    info = folder.look("f")
    assert info is not None
    assert stat.S_IMODE(info.st_mode) == 0o600
    folder.rename("f", "g")
    assert folder.look("f") is None
    assert folder.remove("g")
    assert not folder.remove("g")
    folder.sync()
    with pytest.raises(LocalFile) as missing:
        folder.rename("f", "g")
    assert missing.value.data["errno"] == "ENOENT"


@pytest.mark.parametrize("step", ["write", "sync", "rename"])
def test_a_write_that_is_cut_leaves_the_old_content_and_no_litter(folder, step):
    folder.write_file("f", b"old")

    def crash(name):
        if name == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.write_file("f", b"new", on_step=crash)
    assert folder.names() == ["f"]
    assert folder.read_file("f", 10) == b"old"


def test_a_full_disk_is_said_to_be_one(tmp_path):
    with small_disk(tmp_path / "disk", "size=64k") as disk, AnchoredFolder.open(str(disk)) as folder:
        with pytest.raises(NoSpace):
            folder.write_file("f", bytes(1 << 20))
        assert folder.names() == []


@pytest.fixture
def no_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("no_umask")
def test_a_new_home_and_its_state_are_closed_whatever_the_umask_is(tmp_path):
    home = tmp_path / "share/stoker"
    make_state(str(home / "state"))
    assert [mode_of(one) for one in (home.parent, home, home / "state")] == [0o755, 0o700, 0o700]
    other = tmp_path / "other"
    make_home(str(other))
    assert mode_of(other) == 0o700
    other.chmod(0o2775)
    make_state(str(other / "state"))
    assert mode_of(other) == 0o2775, "one that exists stays as it is"


def test_others_lose_the_right_to_write_in_a_home_that_is_ours(tmp_path):
    home, state = tmp_path / "home", tmp_path / "home/state"
    assert close_home(str(home)) == "", "there is none"
    state.mkdir(parents=True)
    home.chmod(0o777)
    state.chmod(0o2777)
    assert close_home(str(home)).splitlines() == [
        f"note: others could write in {home} (mode 777); they no longer can",
        f"note: others could write in {state} (mode 777); they no longer can",
    ]
    assert (mode_of(home), mode_of(state)) == (0o775, 0o2775), "a group may share it"
    assert close_home(str(home)) == ""


def test_the_folder_of_other_programs_or_users_is_not_closed(tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / "state").mkdir(parents=True, mode=0o700)
    (home / "somebodys").mkdir()
    home.chmod(0o777)
    assert close_home(str(home)) == f"note: others may write in {home}, and act as you through it: chmod o-w {home}"
    home.chmod(0o1777)
    assert close_home(str(home)) == "", "as /tmp is"
    (home / "somebodys").rmdir()
    home.chmod(0o777)
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert close_home(str(home)) == ""
    assert mode_of(home) == 0o777
