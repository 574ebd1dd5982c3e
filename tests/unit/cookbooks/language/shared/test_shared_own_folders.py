from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.cookbooks.language.kinds import Adapter
from stoker.core.clock import FakeClock
from stoker.core.errors import LocalFile, LockHeld
from stoker.host.locks import FileLock, is_locked
from tests.later import imported_later
from tests.unit.cookbooks.language.shared.companions import Gathering, Person

with imported_later():
    from stoker.cookbooks.language.shared import outputs
    from stoker.cookbooks.language.shared.loop import train_members
    from stoker.cookbooks.language.shared.outputs import OwnFolders, own_folder


People = Callable[..., Person]


def test_a_member_whose_folder_is_another_run_s_is_refused_with_who_has_it_and_the_others_go_on(
    person: People, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    refused, other = person(0, checkpoints=str(taken), label="late"), person(1, checkpoints=str(tmp_path / "own"))
    with FileLock(taken / ".lock", "trains early"):
        train_members(Gathering([refused, other]), FakeClock())
    assert isinstance(refused.ended, LockHeld)
    assert f"{taken} (process {os.getpid()}, which trains early)" in str(refused.ended)
    assert "checkpoints=FOLDER" in refused.ended.hint
    assert isinstance(other.ended, Adapter)
    assert not (taken / "best").exists()
    assert not is_locked(tmp_path / "own" / ".lock")


@pytest.mark.parametrize(("first", "second"), [("ck", "ck/best"), ("ck/best", "ck"), ("ck", "ck/epoch-3/mine")])
def test_a_folder_that_is_a_checkpoint_of_another_training_s_is_its_too(
    tmp_path: Path, first: str, second: str
) -> None:
    clock = FakeClock()
    with own_folder(str(tmp_path / first), "early", clock):
        with pytest.raises(LockHeld, match="which trains early"), own_folder(str(tmp_path / second), "late", clock):
            pass
        with own_folder(str(tmp_path / "ck" / "worst"), "beside", clock):
            pass


def test_what_is_in_the_way_of_checkpoints_is_found_before_anything_is_trained(tmp_path: Path) -> None:
    (tmp_path / "ck" / "best").mkdir(parents=True)
    with pytest.raises(LocalFile, match="file exists"), own_folder(str(tmp_path / "ck"), "it", FakeClock()):
        pass
    assert not is_locked(tmp_path / "ck" / ".lock")


def test_two_members_of_one_folder_have_it_one_after_the_other(person: People, tmp_path: Path) -> None:
    asked = tmp_path / "kept"
    one, other = (person(number, checkpoints=str(asked)) for number in range(2))
    train_members(Gathering([one, other]), FakeClock())
    assert isinstance(one.ended, Adapter)
    assert isinstance(other.ended, Adapter)
    assert not is_locked(asked / ".lock")


def test_one_who_comes_again_after_its_run_was_killed_has_its_folder_at_once(person: People, tmp_path: Path) -> None:
    asked = str(tmp_path / "kept")
    killed, again = person(0, checkpoints=asked), person(1, checkpoints=asked)
    killed.on_report = lambda report: setattr(killed, "is_gone", report.get("step") == 2)
    clock = FakeClock()
    train_members(Gathering([killed], [again], borders=3), clock)
    assert isinstance(again.ended, Adapter)
    assert clock.monotonic_s() < outputs.LOOK_S


def test_a_folder_on_a_file_system_without_locks_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_lock: FileLock) -> None:
        raise LocalFile("function not implemented", errno="ENOSYS")

    monkeypatch.setattr(FileLock, "acquire", refuse)
    assert OwnFolders(FakeClock()).take(0, str(tmp_path), "one")


def test_a_training_alone_waits_a_while_for_its_folder_and_leaves_it_free(tmp_path: Path) -> None:
    clock = FakeClock()
    with own_folder(str(tmp_path), "one", clock), pytest.raises(LockHeld), own_folder(str(tmp_path), "two", clock):
        pass
    assert clock.monotonic_s() == pytest.approx(10, abs=1)
    with own_folder(str(tmp_path), "two", clock):
        assert is_locked(tmp_path / ".lock")
    assert not is_locked(tmp_path / ".lock")
