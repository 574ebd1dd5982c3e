"""The home of a worker with a ticket: private, on a local disk, and gone afterwards, whoever has to remove it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock, SystemClock
from stoker.core.errors import LocalFile
from stoker.core.frozen import changed
from stoker.core.jsontext import dumps, loads
from stoker.host.durable import remove_tree
from stoker.host.identity import mine, of_pid
from stoker.host.resources import FileSystem, file_system_of
from stoker.worker import daemon as module
from stoker.worker.daemon import HOME_OWNER, HOME_PREFIX, private_home, sweep_homes


@pytest.fixture
def parent(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(module, "_USUAL", str(tmp_path / "usual"))
    (tmp_path / "usual").mkdir()
    (tmp_path / "parent").mkdir()
    return tmp_path / "parent"


def _left(parent: Path, owner: object, name: str = "left") -> Path:
    """Make what a worker that was killed leaves behind."""
    home = parent / f"{HOME_PREFIX}{name}"
    (home / "store").mkdir(parents=True)
    (home / "store" / "blob").write_bytes(b"x")
    (home / "store").chmod(0o500)
    if owner is not None:
        (home / HOME_OWNER).write_text(owner if isinstance(owner, str) else dumps(owner))
    return home


def _dead() -> dict[str, object]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = of_pid(process.pid)
    process.communicate()
    assert identity is not None
    return identity.to_dict()


def test_a_signal_right_after_the_folder_is_made_leaves_nothing(parent, monkeypatch):
    make = os.mkdir

    def made(path: str, mode: int = 0o777) -> None:
        make(path, mode)
        # Threads of other tests may make folders meanwhile.
        if path.startswith(str(parent)):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "mkdir", made)
    with pytest.raises(KeyboardInterrupt), private_home("a100", {"TMPDIR": str(parent)}, SystemClock()):
        pass
    assert list(parent.iterdir()) == []


def test_a_home_is_private_marked_and_removed(parent):
    with private_home("a100-7f3a2c", {"TMPDIR": str(parent)}, SystemClock()) as home:
        assert os.path.dirname(home) == str(parent)
        assert os.path.basename(home).startswith("stoker-home-a100-7f3a2c-")
        assert os.stat(home).st_mode & 0o777 == 0o700
        assert loads(Path(home, HOME_OWNER).read_bytes()) == mine().to_dict()
        os.makedirs(os.path.join(home, "store", "deep"))
    assert list(parent.iterdir()) == []


def test_a_home_is_removed_also_after_an_error(parent):
    with pytest.raises(KeyboardInterrupt), private_home("w", {"TMPDIR": str(parent)}, SystemClock()):
        raise KeyboardInterrupt
    assert list(parent.iterdir()) == []


def test_a_request_to_end_does_not_cut_the_removal_off(parent, monkeypatch):
    removed = module._remove

    def remove(home, clock):
        signal.raise_signal(signal.SIGTERM)
        removed(home, clock)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(module, "_remove", remove)
    with private_home("w", {"TMPDIR": str(parent)}, SystemClock()):
        pass
    assert list(parent.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("named", ["", "missing", "network"])
def test_without_a_local_folder_in_tmpdir_the_usual_one_is_used(parent, monkeypatch, named):
    if named == "network":
        _on_network(monkeypatch, parent)
    variables = {"": {}, "missing": {"TMPDIR": str(parent / "no")}, "network": {"TMPDIR": str(parent)}}[named]
    with private_home("w", variables, SystemClock()) as home:
        assert os.path.dirname(home) == module._USUAL


def test_without_any_local_folder_the_error_names_the_variables(parent, monkeypatch):
    _on_network(monkeypatch, parent)
    monkeypatch.setattr(module, "_USUAL", str(parent / "no"))
    with (
        pytest.raises(LocalFile, match=r"is on a network \(nfs4\)") as caught,
        private_home("w", {"TMPDIR": str(parent)}, SystemClock()),
    ):
        pass
    assert "TMPDIR" in caught.value.hint


def test_the_next_worker_removes_what_a_killed_one_left(parent):
    left = _left(parent, _dead())
    with private_home("w", {"TMPDIR": str(parent)}, SystemClock()):
        assert not left.exists()


@pytest.mark.parametrize("owner", ["living", "elsewhere", "unreadable", "unmarked", "other name", "link"])
def test_nothing_else_is_removed(parent, owner):
    dead = _dead()
    owners = {
        "living": mine().to_dict(),
        "elsewhere": {**dead, "host": "n017"},
        "unreadable": "{",
        "unmarked": None,
        "other name": dead,
        "link": dead,
    }
    left = _left(parent, owners[owner])
    if owner == "other name":
        left = left.rename(parent / "something-else")
    if owner == "link":
        moved = left.rename(parent / "moved")
        left.symlink_to(moved)
    sweep_homes(str(parent), SystemClock())
    assert (left / "store" / "blob").exists()


def test_what_was_never_marked_is_removed_after_an_hour(parent):
    left = _left(parent, None)
    sweep_homes(str(parent), FakeClock(SystemClock().wall_s() + 3700.0))
    assert not left.exists()


def test_a_removal_that_was_cut_off_is_continued(parent, monkeypatch):
    left = _left(parent, _dead())

    def cut_off(path):
        remove_tree(path)
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(module, "remove_tree", cut_off)
        with pytest.raises(KeyboardInterrupt):
            sweep_homes(str(parent), SystemClock())
    assert [path.name for path in left.iterdir()] == [HOME_OWNER]
    sweep_homes(str(parent), SystemClock())
    assert not left.exists()


def _on_network(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def found(path: str) -> FileSystem:
        return changed(file_system_of(path), type="nfs4") if path == str(folder) else file_system_of(path)

    monkeypatch.setattr(module, "file_system_of", found)
