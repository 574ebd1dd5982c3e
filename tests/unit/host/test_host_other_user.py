"""Which programs another user may execute: the answer must be the kernel's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from stoker.host.users import OtherUser, may_execute, why_not_allowed

UID = 32_000_000 + os.getpid()
GROUP = UID + 1
STRANGER = UID + 2
USER = OtherUser(name="jobs1", uid=UID, gid=UID, groups=(GROUP,))
pytestmark = pytest.mark.skipif(bool(why_not_allowed()), reason=f"programs of other users: {why_not_allowed()}")


def kernel_executes(path: Path) -> bool:
    try:
        subprocess.run([path], user=USER.uid, group=USER.gid, extra_groups=USER.groups, env={}, cwd="/", check=True)
    except PermissionError:
        return False
    return True


@pytest.mark.parametrize(
    ("mode", "owner", "group", "is_allowed"),
    [
        (0o755, 0, 0, True),
        (0o711, 0, 0, True),
        (0o644, 0, 0, False),
        (0o744, 0, 0, False),
        (0o750, 0, 0, False),
        (0o750, 0, UID, True),
        (0o750, 0, GROUP, True),
        (0o705, 0, GROUP, False),
        (0o705, 0, STRANGER, True),
        (0o500, UID, 0, True),
        (0o077, UID, GROUP, False),
    ],
    # Numbers of users differ from one worker of the tests to the other, and names must not.
    ids=map(str, range(11)),
)
def test_the_execute_bit_decides_as_it_does_in_the_kernel(
    open_path: Path, mode: int, owner: int, group: int, is_allowed: bool
) -> None:
    open_path.chmod(0o755)
    program = open_path / "program"
    shutil.copyfile("/bin/true", program)
    os.chown(program, owner, group)
    program.chmod(mode)
    assert may_execute(USER, str(program)) == kernel_executes(program) == is_allowed


def test_only_files_in_folders_that_are_open_to_a_user_can_be_executed(open_path: Path) -> None:
    open_path.chmod(0o755)
    closed, shared = open_path / "closed", open_path / "shared"
    for folder in (closed, shared):
        folder.mkdir()
        shutil.copyfile("/bin/true", folder / "program")
        (folder / "program").chmod(0o755)
        folder.chmod(0o750)
    os.chown(shared, 0, GROUP)
    (open_path / "link").symlink_to(closed / "program")
    for path, is_allowed in ((closed / "program", False), (open_path / "link", False), (shared / "program", True)):
        assert may_execute(USER, str(path)) == kernel_executes(path) == is_allowed, path
    assert not may_execute(USER, str(closed / "nothing"))
    assert not may_execute(USER, str(open_path)), "a folder is no program"


def test_a_fifo_in_the_place_of_a_program_is_refused_and_blocks_nothing(open_path: Path) -> None:
    open_path.chmod(0o755)
    fifo = open_path / "fifo"
    os.mkfifo(fifo)
    fifo.chmod(0o777)
    # Ends an open() that waits for a writer.
    unblock = threading.Timer(5.0, lambda: os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)))
    unblock.start()
    try:
        assert not may_execute(USER, str(fifo))
        assert unblock.is_alive(), "it waited for a writer"
    finally:
        unblock.cancel()
