"""Folders given to another user and taken back, with what somebody may have planted in them. As root."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stoker.core.errors import StageInputError
from stoker.host.users import OtherUser, acting_as, acting_as_owner, give_to, take_back, take_file, why_not_allowed
from tests.leaks import left_open, open_files

USER = OtherUser(name="anna", uid=61234, gid=61234)

pytestmark = pytest.mark.skipif(bool(why_not_allowed()), reason=f"owners: {why_not_allowed()}")


def owners(folder: Path) -> set[int]:
    return {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "given"
    (made / "deep" / "er").mkdir(parents=True)
    (made / "deep" / "er" / "file").write_text("x")
    (made / "program").write_text("x")
    (made / "program").chmod(0o755)
    (made / "link").symlink_to("program")
    return made


def test_all_of_it_is_given_and_nobody_else_may_read_it(folder: Path):
    give_to(USER, folder=str(folder))
    assert owners(folder) == {USER.uid}
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}
    assert modes == {"given": 0o700, "deep": 0o700, "er": 0o700, "file": 0o600, "program": 0o700, "link": 0o700}


def test_what_a_link_leads_to_is_never_given(folder: Path, tmp_path: Path):
    (tmp_path / "ours").write_text("x")
    (folder / "outward").symlink_to(tmp_path / "ours")
    (folder / "upward").symlink_to(tmp_path)
    give_to(USER, str(folder))
    assert (tmp_path / "ours").stat().st_uid == 0
    assert tmp_path.stat().st_uid == 0


def test_a_blob_that_is_linked_into_it_stays_ours_and_can_be_read(folder: Path, tmp_path: Path):
    blob = tmp_path / "blob"
    blob.write_text("x")
    blob.chmod(0o400)
    os.link(blob, folder / "data")
    give_to(USER, str(folder))
    assert blob.stat().st_uid == 0
    with acting_as(USER.uid, USER.gid), pytest.raises(PermissionError):
        (folder / "data").open("r+")
    assert blob.stat().st_mode & 0o222 == 0


def test_what_is_ours_in_it_stays_ours(folder: Path):
    give_to(USER, str(folder), keeps=frozenset({"program"}))
    assert (folder / "program").stat().st_uid == 0


def test_what_it_made_is_taken_back_with_modes_of_ours(folder: Path):
    give_to(USER, str(folder))
    (folder / "program").chmod(0o6777)
    (folder / "deep").chmod(0o1777)
    assert take_back(USER, str(folder)) == ()
    assert owners(folder) == {0}
    assert (folder / "program").stat().st_mode & 0o7777 == 0o700
    assert (folder / "deep").stat().st_mode & 0o7777 == 0o700


def test_a_second_name_of_somebody_elses_file_is_removed_and_the_file_left_alone(folder: Path, tmp_path: Path):
    theirs = tmp_path / "theirs"
    theirs.write_text("x")
    os.chown(theirs, 61999, 61999)
    theirs.chmod(0o640)
    give_to(USER, str(folder))
    os.link(theirs, folder / "deep" / "stolen")
    assert take_back(USER, str(folder)) == ("deep/stolen",)
    assert (theirs.stat().st_uid, theirs.stat().st_mode & 0o777) == (61999, 0o640)
    assert not (folder / "deep" / "stolen").exists()


def test_links_are_taken_as_links_or_removed_where_none_may_stay(folder: Path, tmp_path: Path):
    give_to(USER, str(folder))
    (folder / "outward").symlink_to(tmp_path / "ours")
    os.chown(folder / "outward", USER.uid, USER.gid, follow_symlinks=False)
    assert take_back(USER, str(folder)) == ()
    assert (folder / "outward").is_symlink()
    give_to(USER, str(folder))
    assert sorted(take_back(USER, str(folder), keeps_links=False)) == ["link", "outward"]


def test_pipes_and_sockets_are_no_part_of_it_and_nobody_waits_for_them(folder: Path):
    give_to(USER, str(folder))
    os.mkfifo(folder / "pipe")
    os.chown(folder / "pipe", USER.uid, USER.gid)
    assert take_back(USER, str(folder)) == ("pipe",)


def test_folders_without_end_are_refused(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    place = os.open(tmp_path / "deep", os.O_RDONLY)
    for _ in range(600):
        os.mkdir("d", dir_fd=place)
        inner = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    with pytest.raises(StageInputError):
        take_back(USER, str(tmp_path / "deep"))


def test_very_many_folders_need_few_descriptors(tmp_path: Path):
    for number in range(300):
        (tmp_path / "wide" / str(number)).mkdir(parents=True)
    before = open_files()
    give_to(USER, str(tmp_path / "wide"))
    assert left_open(before) == set()
    assert owners(tmp_path / "wide") == {USER.uid}


def test_one_file_is_taken_only_if_it_is_a_file_of_that_user(tmp_path: Path):
    (tmp_path / "mine").write_text("x")
    os.chown(tmp_path / "mine", USER.uid, USER.gid)
    (tmp_path / "link").symlink_to("mine")
    take_file(USER, str(tmp_path / "link"))
    assert (tmp_path / "mine").stat().st_uid == USER.uid
    take_file(USER, str(tmp_path / "mine"))
    assert (tmp_path / "mine").stat().st_uid == 0


def test_acting_as_a_user_opens_nothing_that_it_could_not(tmp_path: Path):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o640)
    with acting_as(USER.uid, USER.gid), pytest.raises(PermissionError):
        (tmp_path / "secret").read_text()
    assert (tmp_path / "secret").read_text() == "x"


def test_acting_as_the_owner_is_being_oneself_where_it_is_ours(tmp_path: Path):
    with acting_as_owner(str(tmp_path)):
        (tmp_path / "mine").write_text("x")
    assert (tmp_path / "mine").stat().st_uid == 0
    with acting_as_owner(str(tmp_path / "gone")):
        assert os.path.exists(tmp_path / "mine")


def test_a_block_that_fails_gives_our_rights_back(tmp_path: Path):
    with pytest.raises(RuntimeError), acting_as(USER.uid, USER.gid):
        raise RuntimeError
    (tmp_path / "mine").write_text("x")
    assert (tmp_path / "mine").stat().st_uid == 0
