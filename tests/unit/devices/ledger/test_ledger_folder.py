"""The folder is shared by everybody and trusted in nothing; what can't be used is an error and never room."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from stoker.core.clock import SystemClock
from stoker.core.errors import LocalFile, LockHeld, NoPermission, NoSpace, StokerError
from stoker.devices.ledger.ledger_folder import LedgerFolder, read_name
from stoker.devices.ledger.reservations import DeviceLimit
from stoker.host.identity import Liveness, ProcessIdentity, identity_from
from tests.unit.devices.ledger.lab import Lab, gib, held, not_now, real_ledger, sharing, someone, whole
from tests.unit.host.real_processes import code_of, fork, kill_and_reap, wait_until

NOBODY, SOMEBODY = 65534, 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    yield lab
    lab.close()


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def as_user(user: int, action: Callable[[], object]) -> int:
    """Do something as another user; give the status."""

    def act() -> None:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
        action()

    return code_of(fork(act))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_is_sticky_and_open_to_all_whatever_the_umask(tmp_path: Path, strict_umask: None) -> None:
    ledger = real_ledger(tmp_path)
    held(ledger.reserve(whole()))
    folder = tmp_path / "ledger"
    assert mode(folder) == mode(folder / "leases") == mode(folder / "line") == 0o1777
    assert mode(folder / "lock") == 0o666
    assert [mode(path) for path in (folder / "leases").iterdir()] == [0o644]


@needs_root
def test_users_who_come_first_at_the_same_moment_all_get_in(open_path: Path) -> None:
    for number in range(20):
        place = open_path / str(number)
        place.mkdir()
        place.chmod(0o1777)
        pids = [fork(partial(_look_as, user, place)) for user in (NOBODY, SOMEBODY, 12346)]
        assert [code_of(pid) for pid in pids] == [0, 0, 0]
        assert os.listdir(place) == ["ledger"]


def _look_as(user: int, folder: Path) -> None:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    ledger = real_ledger(folder)
    ledger.release(held(ledger.reserve(sharing(gib(1)))))


def test_folders_above_it_are_made(tmp_path: Path) -> None:
    held(real_ledger(tmp_path / "a" / "b").reserve(whole()))


@needs_root
def test_another_user_sees_what_is_held_and_can_reserve_the_rest(open_path: Path, strict_umask: None) -> None:
    held(real_ledger(open_path).reserve(sharing(gib(12), job="roots")))

    def reserve() -> None:
        os.umask(0o077)
        ledger = real_ledger(open_path)
        answer = not_now(ledger.reserve(sharing(gib(12))))
        assert "roots" in answer.why
        room = held(ledger.reserve(sharing(gib(8))))
        ledger.renew(room)
        assert not_now(ledger.reserve(sharing(gib(1)))).bound is DeviceLimit.LEDGER
        ledger.release(room)
        held(ledger.reserve(sharing(gib(8))))
        os.kill(os.getpid(), signal.SIGKILL)

    assert as_user(NOBODY, reserve) == -signal.SIGKILL
    held(real_ledger(open_path).reserve(sharing(gib(8))))
    assert as_user(SOMEBODY, lambda: not_now(real_ledger(open_path).reserve(sharing(gib(8))))) == 0


@needs_root
def test_a_user_can_make_the_folder_and_root_can_use_it(open_path: Path) -> None:
    open_path.chmod(0o1777)
    assert as_user(NOBODY, lambda: held(real_ledger(open_path).reserve(whole()))) == 0
    held(real_ledger(open_path).reserve(whole()))
    assert as_user(SOMEBODY, lambda: not_now(real_ledger(open_path).reserve(whole()))) == 0


@needs_root
def test_a_user_can_not_take_away_what_another_one_holds(open_path: Path) -> None:
    room = held(real_ledger(open_path).reserve(whole()))
    lease = next((open_path / "ledger" / "leases").iterdir())

    def attack() -> None:
        for act in (lease.unlink, lambda: lease.rename(lease.with_name("x")), lambda: lease.write_bytes(b"")):
            with pytest.raises(PermissionError):
                act()
        with pytest.raises(PermissionError):
            os.rename(lease.parent, lease.parent.with_name("elsewhere"))
        with pytest.raises(PermissionError):
            os.unlink(open_path / "ledger" / "lock")
        with pytest.raises(NoPermission, match="another user"):
            real_ledger(open_path).release(room)

    assert as_user(NOBODY, attack) == 0
    not_now(real_ledger(open_path).reserve(whole()))


@needs_root
def test_a_dead_reservation_that_is_not_ours_to_remove_counts_for_nothing(open_path: Path) -> None:
    pid = fork(lambda: held(real_ledger(open_path).reserve(whole())))
    assert code_of(pid) == 0

    def reserve() -> None:
        ledger = real_ledger(open_path)
        for _ in range(2):
            ledger.release(held(ledger.reserve(whole())))

    assert as_user(NOBODY, reserve) == 0
    assert len(list((open_path / "ledger" / "leases").iterdir())) == 1


@needs_root
def test_a_reservation_that_its_user_hides_may_hold_anything(open_path: Path) -> None:
    held(real_ledger(open_path).reserve(sharing(gib(1))))
    next((open_path / "ledger" / "leases").iterdir()).chmod(0o600)

    def look() -> None:
        ledger = real_ledger(open_path)
        answer = not_now(ledger.reserve(sharing(gib(1))))
        assert answer.bound is DeviceLimit.TAKEN
        assert "can't be read" in answer.why
        assert len(ledger.warnings) == 1

    assert as_user(NOBODY, look) == 0


@needs_root
def test_a_folder_that_may_not_be_written_is_an_error_with_a_hint(open_path: Path) -> None:
    def refuse() -> None:
        with pytest.raises(NoPermission) as caught:
            real_ledger(open_path).reserve(whole())
        assert "ledger of device memory" in caught.value.message
        assert "STOKER_LEDGER" in caught.value.hint

    assert as_user(NOBODY, refuse) == 0
    real_ledger(open_path).state()
    (open_path / "ledger" / "leases").chmod(0o755)
    assert as_user(NOBODY, refuse) == 0
    (open_path / "ledger" / "leases").chmod(0o1777)
    (open_path / "ledger" / "lock").chmod(0o644)
    assert as_user(NOBODY, refuse) == 0


@needs_root
def test_a_folder_in_which_anybody_may_remove_anything_is_refused_or_mended(open_path: Path) -> None:
    real_ledger(open_path).state()
    folder = open_path / "ledger" / "leases"
    folder.chmod(0o777)

    def refuse() -> None:
        with pytest.raises(NoPermission, match="remove other users' records"):
            real_ledger(open_path).reserve(whole())

    assert as_user(NOBODY, refuse) == 0
    held(real_ledger(open_path).reserve(whole()))
    assert mode(folder) == 0o1777


def test_somebodys_folder_is_not_taken_for_a_ledger(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    (folder / "thesis.tex").write_text("…")
    before = mode(folder)
    with pytest.raises(LocalFile, match="not empty"):
        real_ledger(tmp_path).reserve(whole())
    assert mode(folder) == before
    assert os.listdir(folder) == ["thesis.tex"]


@pytest.mark.parametrize("name", ["", "leases", "line", "lock"])
def test_a_link_in_the_place_of_ours_is_refused(tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "precious").write_text("keep me")
    if name:
        real_ledger(tmp_path).state()
        (tmp_path / "ledger" / name).rename(tmp_path / "before")
    target = elsewhere / "precious" if name == "lock" else elsewhere
    (tmp_path / "ledger" / name).symlink_to(target)
    with pytest.raises(StokerError) as caught:
        real_ledger(tmp_path).reserve(whole())
    assert caught.value.exit_code == 16
    assert (elsewhere / "precious").read_text() == "keep me"
    assert os.listdir(elsewhere) == ["precious"]


def test_a_lock_file_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "lock").write_text("somebody's notes")
    with pytest.raises(LocalFile, match="not a ledger"):
        real_ledger(tmp_path).reserve(whole())
    assert (tmp_path / "ledger" / "lock").read_text() == "somebody's notes"


def test_a_network_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mounted:
        type = "nfs4"

    monkeypatch.setattr("stoker.devices.ledger.ledger_folder.file_system_of", lambda _path: Mounted())
    with pytest.raises(LocalFile, match="network"), LedgerFolder(str(tmp_path), SystemClock()).opened():
        pass


def test_names_that_are_not_records_are_nobodys(lab: Lab) -> None:
    lab.ledger.state()
    leases = lab.folder / "leases"
    (leases / "README").write_text("hello")
    (leases / "folder").mkdir()
    (leases / "1-1-zz").write_text("")
    held(lab.ledger.reserve(whole()))
    assert (leases / "README").exists()


@pytest.mark.parametrize(
    "damage",
    [b"", b"garbage", b"stoker-ledger 1 00000000\n{}", b"\0" * 500, b"x" * 200_000],
    ids=["empty", "garbage", "check", "zeroes", "huge"],
)
def test_a_damaged_record_of_a_process_that_is_gone_is_set_aside_with_a_warning(lab: Lab, damage: bytes) -> None:
    gone = someone(7)
    held(lab.ledger.reserve(whole(owner=gone)))
    path = lab.leases()[0]
    path.write_bytes(damage)
    # Long ago, so that its owner can't be in another container either.
    os.utime(path, (1.0, 1.0))
    ledger = lab.another()
    lab.says[_as_named(path.name)] = Liveness.GONE
    held(ledger.reserve(whole()))
    assert "damaged record" in ledger.warnings[0]
    assert f"damaged-{path.name}" in [one.name for one in lab.leases()]
    # Said once.
    not_now(ledger.reserve(whole()))
    assert len(ledger.warnings) == 1


@pytest.mark.parametrize("damage", [b"", b"garbage"], ids=["empty", "garbage"])
def test_a_damaged_record_of_a_living_process_holds_everything_until_it_is_renewed(lab: Lab, damage: bytes) -> None:
    room = held(lab.ledger.reserve(sharing(gib(1))))
    path = lab.leases()[0]
    path.write_bytes(damage)
    ledger = lab.another()
    assert not_now(ledger.reserve(sharing(gib(1)))).bound is DeviceLimit.TAKEN
    assert "renews it or ends" in ledger.warnings[0]
    lab.ledger.renew(room)
    held(ledger.reserve(sharing(gib(1))))


def test_a_record_under_another_ones_name_is_damaged(lab: Lab) -> None:
    held(lab.ledger.reserve(sharing(gib(1))))
    path = lab.leases()[0]
    path.rename(path.with_name(f"1-2-{'0' * 16}"))
    assert not_now(lab.another().reserve(sharing(gib(1)))).bound is DeviceLimit.TAKEN


def test_a_lost_record_comes_back_with_its_renewal(lab: Lab) -> None:
    room = held(lab.ledger.reserve(whole()))
    lab.leases()[0].unlink()
    lab.ledger.renew(room)
    not_now(lab.another().reserve(whole()))


def test_a_folder_that_was_removed_is_made_again(lab: Lab) -> None:
    room = held(lab.ledger.reserve(whole()))
    lab.folder.rename(lab.folder.with_name("gone"))
    lab.ledger.renew(room)
    not_now(lab.another().reserve(whole()))


def test_too_many_files_are_an_error_and_not_room(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.devices.ledger.ledger_folder._MOST_FILES", 10)
    lab.ledger.state()
    for number in range(11):
        (lab.folder / "leases" / str(number)).touch()
    with pytest.raises(StokerError, match="more than 10 files"):
        lab.ledger.reserve(whole())


def test_what_a_killed_process_had_begun_to_write_is_removed(lab: Lab) -> None:
    lab.ledger.state()
    for kind in ("leases", "line"):
        (lab.folder / kind / ".stoker-tmp-1-2-abc").write_bytes(b"half")
    held(lab.ledger.reserve(whole()))
    assert [path.name for path in (*lab.leases(), *lab.tickets()) if path.name.startswith(".")] == []


def test_a_full_disk_is_an_error_and_leaves_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.ledger.state()

    def no_space(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stoker.devices.ledger.ledger_folder.write_all", no_space)
    with pytest.raises(NoSpace):
        lab.ledger.reserve(whole())
    assert lab.leases() == []


def test_a_stopped_process_in_the_lock_is_named_and_nobody_goes_past_it(tmp_path: Path) -> None:
    lab = Lab(tmp_path)
    room = held(lab.ledger.reserve(whole()))

    def stop_inside(step: str) -> None:
        if step == "read":
            os.kill(os.getpid(), signal.SIGSTOP)

    pid = fork(lambda: real_ledger(tmp_path, on_step=stop_inside).state())
    try:
        assert os.waitpid(pid, os.WUNTRACED)[0] == pid
        with pytest.raises(LockHeld, match=f"process {pid}"):
            lab.ledger.reserve(whole())
        # What is ours we can still give back.
        lab.ledger.release(room)
        assert lab.leases() == []
    finally:
        os.kill(pid, signal.SIGCONT)
        assert code_of(pid) == 0


def test_a_process_that_dies_leaves_no_room_held_by_its_number_alone(tmp_path: Path) -> None:
    pid = fork(lambda: (held(real_ledger(tmp_path).reserve(whole())), signal.pause()))
    ledger = real_ledger(tmp_path)
    wait_until(lambda: bool(ledger.state().devices))
    not_now(ledger.reserve(whole()))
    kill_and_reap(pid)
    held(ledger.reserve(whole()))


def _as_named(name: str) -> ProcessIdentity:
    """The process that a record's name tells of, as it is seen from here."""
    read = read_name(name)
    assert read is not None
    return identity_from(read.pid, read.start_ticks)
