from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from stoker.core.errors import LocalFile, NoPermission, NoSpace
from stoker.host import durable
from stoker.host.durable import (
    create_file,
    move_into,
    open_regular,
    read_regular,
    read_secret,
    remove_tree,
    rename_exclusively,
    replace_symlink,
    sweep_temps,
    sync_dir,
    temp_folder,
    translated,
    write_file,
)
from tests.unit.host.real_mounts import small_disk
from tests.unit.host.real_processes import code_of, fork
from tests.unit.host.waiting import at_once


def test_a_file_has_the_bytes_and_the_mode_it_was_given(tmp_path):
    write_file(tmp_path / "a", b"one", mode=0o600)
    assert (tmp_path / "a").read_bytes() == b"one"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("target", ["pipe", "/dev/null"])
def test_a_link_to_a_pipe_or_a_device_is_never_replaced_by_a_file(tmp_path, target):
    os.mkfifo(tmp_path / "pipe")
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(LocalFile, match="not a regular file"):
        write_file(link, b"one")
    assert os.readlink(link) == target
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes devices")
def test_a_device_is_never_replaced_by_a_file(tmp_path):
    device = tmp_path / "null"
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with pytest.raises(LocalFile, match="not a regular file"):
        write_file(device, b"one")
    assert stat.S_ISCHR(device.stat().st_mode)


def test_a_pipe_that_lies_in_the_way_is_replaced(tmp_path):
    os.mkfifo(tmp_path / "a")
    write_file(tmp_path / "a", b"one")
    assert (tmp_path / "a").read_bytes() == b"one"


def test_a_link_to_our_own_output_is_never_replaced_by_a_file(tmp_path):
    link = tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")
    with pytest.raises(LocalFile, match="not a regular file"):
        write_file(link, b"one")
    assert link.is_symlink()


def test_a_file_is_replaced_even_if_it_is_read_only(tmp_path):
    write_file(tmp_path / "a", b"one", mode=0o444)
    write_file(str(tmp_path / "a"), b"two")
    assert (tmp_path / "a").read_bytes() == b"two"


def test_a_file_in_the_current_folder_needs_no_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_file("a", b"one")
    assert create_file("b", b"two")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_large_and_empty_contents_arrive_whole(tmp_path):
    large = os.urandom(5_000_000)
    write_file(tmp_path / "large", large)
    write_file(tmp_path / "empty", b"")
    assert (tmp_path / "large").read_bytes() == large
    assert (tmp_path / "empty").read_bytes() == b""


def test_a_name_of_the_longest_length_can_be_written(tmp_path):
    name = "n" * 255
    write_file(tmp_path / name, b"x")
    assert os.listdir(tmp_path) == [name]


def test_creating_is_refused_once_the_name_exists(tmp_path):
    assert create_file(tmp_path / "a", b"first", 0o444)
    assert not create_file(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o444
    assert os.listdir(tmp_path) == ["a"]


def test_creating_loses_to_a_writer_that_comes_in_between(tmp_path):
    def slip_in(step: str) -> None:
        if step == "link":
            (tmp_path / "a").write_bytes(b"theirs")

    assert not create_file(tmp_path / "a", b"ours", on_step=slip_in)
    assert (tmp_path / "a").read_bytes() == b"theirs"
    assert os.listdir(tmp_path) == ["a"]


def test_a_dangling_link_counts_as_taken(tmp_path):
    (tmp_path / "a").symlink_to("nowhere")
    assert not create_file(tmp_path / "a", b"x")
    assert os.readlink(tmp_path / "a") == "nowhere"


def test_without_hard_links_a_rename_is_as_exclusive(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    assert rename_exclusively(str(tmp_path / "one"), str(tmp_path / "target"))
    assert not rename_exclusively(str(tmp_path / "two"), str(tmp_path / "target"))
    assert (tmp_path / "target").read_text() == "one"
    with pytest.raises(FileNotFoundError):
        rename_exclusively(str(tmp_path / "one"), str(tmp_path / "elsewhere"))


def test_of_twenty_processes_that_create_one_file_one_wins(tmp_path):
    target = tmp_path / "prize"
    gate_read, gate_write = os.pipe()

    def race(number: int) -> None:
        os.close(gate_write)
        os.read(gate_read, 1)  # gives nothing, at once, when the gate opens for all of them
        won = create_file(target, f"{number}\n".encode() * 300)
        os._exit(10 if won else 11)

    racers = [fork(partial(race, number)) for number in range(20)]
    os.close(gate_read)
    os.close(gate_write)
    codes = [code_of(pid) for pid in racers]
    assert sorted(codes) == [10] + [11] * 19
    assert target.read_bytes() == f"{codes.index(10)}\n".encode() * 300
    assert os.listdir(tmp_path) == ["prize"]


def test_steps_are_announced_in_order_before_they_happen(tmp_path):
    seen: list[tuple[str, list[str]]] = []

    def look(step: str) -> None:
        seen.append((step, ["temp" if name.startswith(".") else name for name in os.listdir(tmp_path)]))

    write_file(tmp_path / "a", b"x", on_step=look)
    assert seen == [("write", []), ("sync", ["temp"]), ("rename", ["temp"]), ("sync_dir", ["a"])]
    assert tuple(step for step, _ in seen) == durable.WRITE_STEPS


@pytest.mark.parametrize("step", durable.WRITE_STEPS[:3])
def test_a_write_that_fails_leaves_the_old_content_and_no_temporary_file(tmp_path, step):
    (tmp_path / "a").write_bytes(b"old")

    def fail(name: str) -> None:
        if name == step:
            raise OSError(28, "No space left on device")

    with pytest.raises(NoSpace):
        write_file(tmp_path / "a", b"new", on_step=fail)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_an_interrupt_in_the_middle_leaves_no_temporary_file(tmp_path):
    def interrupt(step: str) -> None:
        if step == "sync":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create_file(tmp_path / "a", b"x", on_step=interrupt)
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_written_piece_by_piece_has_its_name_once_it_is_whole(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with durable.writing(path, mode=0o600) as file:
        file.write(b"one ")
        assert path.read_bytes() == b"old"
        file.write(b"two")
    assert path.read_bytes() == b"one two"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_whose_writer_gives_up_leaves_the_old_one_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def give_up() -> None:
        with durable.writing(path) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        give_up()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_moving_promotes_a_file_and_sets_its_mode(tmp_path):
    (tmp_path / "draft").write_bytes(b"work")
    (tmp_path / "blobs").mkdir()
    move_into(tmp_path / "draft", tmp_path / "blobs" / "abc", mode=0o444)
    sync_dir(tmp_path / "blobs")
    assert (tmp_path / "blobs" / "abc").read_bytes() == b"work"
    assert stat.S_IMODE((tmp_path / "blobs" / "abc").stat().st_mode) == 0o444
    assert not (tmp_path / "draft").exists()


def test_a_link_is_never_promoted(tmp_path):
    (tmp_path / "secret").write_bytes(b"s")
    (tmp_path / "draft").symlink_to("secret")
    with pytest.raises(LocalFile, match="symbolic link"):
        move_into(tmp_path / "draft", tmp_path / "blob", mode=0o444)
    assert not (tmp_path / "blob").exists()


def test_moving_to_another_file_system_says_so(tmp_path):
    (tmp_path / "draft").write_bytes(b"work")
    with (
        small_disk(tmp_path / "other", "size=1m") as other,
        pytest.raises(LocalFile, match="another file system") as caught,
    ):
        move_into(tmp_path / "draft", other / "blob")
    assert "one file system" in caught.value.hint
    assert (tmp_path / "draft").read_bytes() == b"work"


def test_a_link_is_pointed_elsewhere_in_one_step(tmp_path):
    replace_symlink("one", tmp_path / "latest")
    replace_symlink("two", tmp_path / "latest")
    assert os.readlink(tmp_path / "latest") == "two"
    assert os.listdir(tmp_path) == ["latest"]


def test_a_tree_is_removed_with_its_read_only_parts_but_not_what_links_point_to():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outside, tree = folder / "outside", folder / "tree"
        outside.mkdir()
        (outside / "keep").write_text("k")
        (tree / "a" / "b").mkdir(parents=True)
        (tree / "a" / "b" / "file").write_text("f")
        (tree / "a" / "link").symlink_to(outside)
        (tree / "a" / "dangling").symlink_to("nowhere")
        (tree / "a" / "b").chmod(0o000)
        (tree / "a").chmod(0o500)

        def act() -> None:
            _become_ordinary(folder)
            assert remove_tree(tree)

        assert code_of(fork(act)) == 0
        assert not tree.exists()
        assert (outside / "keep").read_text() == "k"


def _become_ordinary(folder: Path) -> None:
    """Modes do not hold root back, so root gives the folder and itself to another user."""
    if os.geteuid() != 0:
        return
    for root, folders, files in os.walk(folder):
        for name in (root, *(os.path.join(root, name) for name in folders + files)):
            os.lchown(name, 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)


def test_removing_a_link_to_a_folder_removes_the_link(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "keep").write_text("k")
    (tmp_path / "link").symlink_to("folder")
    assert remove_tree(f"{tmp_path}/link/")
    assert sorted(os.listdir(tmp_path)) == ["folder"]
    assert (tmp_path / "folder" / "keep").exists()


def test_removing_works_on_files_and_on_nothing(tmp_path):
    (tmp_path / "file").write_text("f")
    assert remove_tree(tmp_path / "file")
    assert not remove_tree(tmp_path / "file")
    assert not remove_tree(tmp_path / "no" / "such" / "folder")


def test_a_deep_tree_is_removed(tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(500):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    assert remove_tree(tmp_path / "d")
    assert os.listdir(tmp_path) == []


def test_a_read_only_folder_is_a_matter_of_permission():
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o555)

        def act() -> None:
            _become_ordinary(Path(name))
            for attempt in (write_file, create_file):
                with pytest.raises(NoPermission, match="no permission") as caught:
                    attempt(f"{name}/a", b"x")
                assert caught.value.data["path"] == f"{name}/a"

        assert code_of(fork(act)) == 0
        assert os.listdir(name) == []


def test_a_read_only_file_system_says_so(tmp_path):
    with (
        small_disk(tmp_path / "disk", "size=1m,ro") as disk,
        pytest.raises(NoPermission, match="read-only file system"),
    ):
        write_file(disk / "a", b"x")


def test_a_full_disk_is_reported_and_keeps_the_old_content(tmp_path):
    with small_disk(tmp_path / "disk", "size=1m") as disk:
        write_file(disk / "a", b"old")
        for attempt in (write_file, create_file):
            with pytest.raises(NoSpace, match="no space left") as caught:
                attempt(disk / f"{attempt.__name__}", bytes(2_000_000))
            assert caught.value.exit_code == 10
        with pytest.raises(NoSpace):
            write_file(disk / "a", bytes(2_000_000))
        assert (disk / "a").read_bytes() == b"old"
        assert os.listdir(disk) == ["a"]


def test_a_missing_folder_and_a_folder_in_the_way_are_local_faults(tmp_path):
    with pytest.raises(LocalFile, match="no such file or folder"):
        write_file(tmp_path / "no" / "a", b"x")
    (tmp_path / "a").mkdir()
    with pytest.raises(LocalFile, match="this is a folder"):
        write_file(tmp_path / "a", b"x")
    (tmp_path / "file").write_text("f")
    with pytest.raises(LocalFile, match="not a folder"):
        write_file(tmp_path / "file" / "x", b"x")
    assert sorted(os.listdir(tmp_path)) == ["a", "file"]


def test_translation_keeps_the_cause_and_lets_other_errors_pass(tmp_path):
    with pytest.raises(LocalFile) as caught, translated(tmp_path / "x"):
        os.stat(tmp_path / "x")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert caught.value.data == {"path": str(tmp_path / "x"), "errno": "ENOENT"}
    with pytest.raises(KeyError), translated(tmp_path):
        raise KeyError
    with pytest.raises(NoSpace), translated(tmp_path):
        raise NoSpace("full")


def test_sweeping_spares_the_young_the_living_and_what_is_not_ours(tmp_path):
    def leave_one() -> None:
        write_file(tmp_path / "a", b"x", on_step=lambda step: os._exit(0) if step == "rename" else None)

    assert code_of(fork(leave_one)) == 0
    (left,) = os.listdir(tmp_path)
    (tmp_path / ".other").write_text("o")
    now_s = (tmp_path / left).stat().st_mtime
    assert sweep_temps(tmp_path, 60, now_s + 59) == ()
    found: list[tuple[str, ...]] = []
    write_file(
        tmp_path / "b",
        b"x",
        on_step=lambda step: found.append(sweep_temps(tmp_path, 60, now_s + 3600)) if step == "rename" else None,
    )
    assert found == [(str(tmp_path / left),)]
    assert sorted(os.listdir(tmp_path)) == [".other", "b"]


def test_a_temporary_folder_is_removed_or_if_it_was_killed_by_the_next(tmp_path):
    parent = tmp_path / "scratch"

    def leave_one() -> None:
        with temp_folder(parent, 0.0) as path:
            Path(path, "inner").mkdir()
            Path(path, "inner", "a").write_text("x")
            os._exit(0)

    assert code_of(fork(leave_one)) == 0
    (left,) = os.listdir(parent)
    now_s = (parent / left).stat().st_mtime
    with temp_folder(parent, now_s) as path:
        assert os.listdir(path) == []
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o700
        with temp_folder(parent, now_s + 3600) as other:
            assert sorted(os.listdir(parent)) == sorted(map(os.path.basename, (path, other)))
    assert os.listdir(parent) == []


def test_a_temporary_file_of_a_recycled_number_is_swept(tmp_path):
    mine = durable.temp_name(str(tmp_path))
    folder, pid, ticks, token = mine.rsplit("/", 1)[0], *mine.rsplit("/", 1)[1].rsplit("-", 3)[1:]
    stale = Path(f"{folder}/.stoker-tmp-{pid}-{int(ticks) - 1}-{token}")
    Path(mine).touch()
    stale.touch()
    Path(f"{folder}/.stoker-tmp-nonsense").touch()
    now_s = stale.stat().st_mtime + 1
    assert set(sweep_temps(tmp_path, 0, now_s)) == {str(stale), f"{folder}/.stoker-tmp-nonsense"}
    assert os.listdir(tmp_path) == [os.path.basename(mine)]


def test_importing_it_pulls_in_nothing_heavy():
    code = (
        "import sys, stoker.host.durable;"
        "heavy = {'subprocess', 'tempfile', 'logging', 'pathlib', 'dataclasses', 'shutil', 'ctypes', 'socket', 'json'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    answer = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "put",
    [os.mkfifo, os.mkdir, lambda path: os.symlink("/etc/hostname", path), lambda path: os.symlink("/dev/zero", path)],
)
def test_only_a_file_is_read_and_nobody_waits_for_anything_else(tmp_path, put):
    put(tmp_path / "a")
    with at_once(), pytest.raises(OSError, match="a'"):
        open_regular(tmp_path / "a")


def test_a_file_is_read_whole_or_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"1234")
    assert read_regular(tmp_path / "a", 4) == b"1234"
    with pytest.raises(OSError, match="too large"):
        read_regular(tmp_path / "a", 3)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "b", 3)


def test_a_secret_of_another_user_is_refused_even_if_it_can_be_read(tmp_path, monkeypatch):
    path = tmp_path / "token"
    path.write_bytes(b"chosen by mallory")
    path.chmod(0o600)
    assert read_secret(path, 100) == b"chosen by mallory"
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(LocalFile, match=f"belongs to another user \\({owner}\\)") as refused:
        read_secret(path, 100)
    assert refused.value.hint == f"run the command as that user, or trust the file: chown {owner + 1} {path}"
