"""Anybody may write into the ledger's folder: that may delay others, and never stops them for good."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.core.frozen import changed
from stoker.devices.ledger.ledger_folder import LAST_NUMBER, name_of, pack
from stoker.devices.ledger.liveness import SEEN_S, liveness_of
from stoker.devices.ledger.reservations import LONGEST_LEASE_S, DeviceLimit, QueueTicket, Reservation
from stoker.host.identity import Liveness, mine, of_pid, users_of
from tests.unit.devices.ledger.lab import Lab, entry, gib, held, not_now, real_ledger, sharing, someone, whole
from tests.unit.host.real_processes import fork, kill_and_reap, wait_until

NAME = f"7-70-{'a' * 16}"
SOMEBODY = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="giving a file to another user needs root")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path)
    lab.ledger.state()
    yield lab
    lab.close()


def put(lab: Lab, record: Reservation | QueueTicket, *, user: int | None = None) -> Path:
    """Leave a record that nobody was granted."""
    path = lab.folder / ("leases" if isinstance(record, Reservation) else "line") / str(name_of(record))
    path.write_bytes(pack(record.to_dict()))
    if user is not None:
        os.chown(path, user, user)
    return path


def ticket(pid: int, number: int, **more: object) -> QueueTicket:
    fields: dict[str, object] = {
        "count": 1,
        "vram_bytes": 0,
        "may_share": False,
        "since_s": 0.0,
        "seen_until_s": SEEN_S,
    }
    fields |= {"id": f"{pid:016x}", "job": f"job{pid}", "owner": someone(pid), "uuids": ("GPU-a",), "number": number}
    return QueueTicket(**{**fields, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        f"line/3.{NAME}",
        "line/.stoker-tmp-1-2-abc",
        "leases/.stoker-tmp-1-2-abc",
        f"leases/damaged-{NAME}",
    ],
)
def test_a_folder_among_the_records_stops_nobody(lab: Lab, name: str) -> None:
    (lab.folder / name / "in it").mkdir(parents=True)
    damaged = lab.folder / "leases" / NAME
    damaged.touch()
    os.utime(damaged, (1.0, 1.0))
    for identity in (someone(7), changed(mine(), pid=7, start_ticks=70)):
        lab.says[identity] = Liveness.GONE
    held(lab.ledger.reserve(whole()))
    assert (lab.folder / name / "in it").is_dir()


@pytest.mark.parametrize("text", ["hello", "x" * 100_000, '{"identity":'], ids=["word", "long", "cut"])
def test_what_anybody_writes_into_the_lock_stops_nobody(lab: Lab, text: str) -> None:
    (lab.folder / "lock").write_text(text)
    held(lab.ledger.reserve(whole()))
    assert (lab.folder / "lock").read_bytes() == b""


def test_a_record_that_its_user_keeps_from_being_opened_is_one_that_can_not_be_read(lab: Lab) -> None:
    path = put(lab, entry(gib(1)))
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, 0)
        fcntl.fcntl(fd, fcntl.F_SETOWN, 0)
        try:
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            pytest.skip("a file system without leases")
        before = _ignoring_io()
        try:
            assert not_now(lab.ledger.reserve(whole())).bound is DeviceLimit.TAKEN
        finally:
            before()
    finally:
        os.close(fd)


def _ignoring_io() -> Callable[[], object]:
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    return lambda: signal.signal(signal.SIGIO, before)


def test_a_number_that_nobody_waits_at_is_not_counted_from(lab: Lab) -> None:
    (lab.folder / "line" / f"{LAST_NUMBER}.{NAME}").touch()
    held(lab.ledger.reserve(whole()))
    first, second = lab.place(whole()), lab.place(whole())
    assert not_now(first.look()).number == 1
    assert not_now(second.look()).number == 2
    assert len(lab.tickets()) == 2


def test_who_comes_after_the_last_number_is_still_seen_in_line(lab: Lab) -> None:
    put(lab, ticket(7, LAST_NUMBER))
    held(lab.ledger.reserve(whole(devices=(changed(whole().devices[0], uuid="GPU-b"),))))
    place = lab.place(whole())
    assert not_now(place.look()).number == LAST_NUMBER
    assert len(lab.ledger.state().waiting) == 2


@needs_root
def test_a_reservation_that_names_another_users_process_ends_with_its_lease(lab: Lab) -> None:
    lab.users[7] = frozenset({0})
    now_s = lab.clock.monotonic_s()
    put(lab, entry(gib(1), is_exclusive=True, lease_until_s=now_s + 90), user=SOMEBODY)
    not_now(lab.another().reserve(whole()))
    lab.clock.advance(91)
    held(lab.another().reserve(whole()))


@needs_root
def test_a_users_own_process_holds_as_long_as_it_lives(lab: Lab) -> None:
    lab.users[7] = frozenset({0, SOMEBODY})
    put(lab, entry(gib(1), is_exclusive=True), user=SOMEBODY)
    lab.clock.advance(1000)
    not_now(lab.another().reserve(whole()))


@needs_root
def test_scribble_in_the_name_of_another_users_process_is_nobodys(lab: Lab) -> None:
    lab.users[7] = frozenset({0})
    path = lab.folder / "leases" / NAME
    path.touch()
    os.chown(path, SOMEBODY, SOMEBODY)
    os.utime(path, (1.0, 1.0))
    held(lab.ledger.reserve(whole()))


@pytest.mark.parametrize("lease_s", [90.0, 1e11], ids=["longer than it says", "longer than may be"])
def test_a_lease_that_never_ends_is_none(lab: Lab, lease_s: float) -> None:
    owner = someone(7)
    lab.says[owner] = Liveness.UNKNOWN
    put(lab, entry(gib(1), is_exclusive=True, lease_s=lease_s, lease_until_s=lab.clock.monotonic_s() + 1e11))
    held(lab.ledger.reserve(whole()))


def test_a_place_in_line_can_not_be_seen_to_for_ever(lab: Lab) -> None:
    put(lab, ticket(7, 1, seen_until_s=lab.clock.monotonic_s() + 1e9))
    held(lab.ledger.reserve(whole()))


def test_a_wish_for_a_longer_lease_than_counts_is_refused() -> None:
    whole(lease_s=LONGEST_LEASE_S)
    with pytest.raises(ValueError, match="an hour"):
        whole(lease_s=LONGEST_LEASE_S + 1)


def test_a_long_name_of_a_job_is_written_so_that_it_can_be_read(lab: Lab) -> None:
    held(lab.ledger.reserve(sharing(gib(1), job="x" * 5000)))
    state = lab.another().state()
    assert [holder.entry.job for device in state.devices for holder in device.holders] == ["x" * 1024]
    held(lab.another().reserve(sharing(gib(1))))


def test_the_name_of_a_job_is_one_line_and_moves_no_cursor(lab: Lab) -> None:
    held(lab.ledger.reserve(whole(job="a\nprocess 1  has it whole\x1b[2J")))
    assert "held whole by a\\x0aprocess 1  has it whole\\x1b[2J" in not_now(lab.another().reserve(whole())).why


@pytest.mark.parametrize("uuid", ["GPU-a\nGPU-b", "GPU-\x1b[2J", "GPU-\u202e"])
def test_a_device_with_an_unprintable_name_is_refused(uuid: str) -> None:
    with pytest.raises(ValueError, match="plain"):
        Reservation.from_dict(entry(gib(1), uuid=uuid).to_dict())


def test_where_the_table_is_not_ours_nobody_is_known_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.devices.ledger.liveness.are_numbers_ours", lambda: False)
    assert liveness_of(mine()) is Liveness.ALIVE
    assert liveness_of(changed(mine(), start_ticks=1)) is Liveness.UNKNOWN
    assert liveness_of(changed(mine(), start_ticks=1, boot_id="another")) is Liveness.GONE


@needs_root
def test_a_process_of_another_user_is_known_for_his(tmp_path: Path) -> None:
    def become() -> None:
        os.setuid(SOMEBODY)
        signal.pause()

    pid = fork(become)
    try:
        wait_until(lambda: users_of(pid) == {SOMEBODY})
        assert users_of(os.getpid()) == {0}
        owner = of_pid(pid)
        assert owner is not None
        # Root may speak for anybody, so what it hands over is held as long as that one lives.
        ledger = real_ledger(tmp_path)
        ledger.hand_over(held(ledger.reserve(whole())), owner)
        not_now(real_ledger(tmp_path).reserve(whole()))
    finally:
        kill_and_reap(pid)
    assert users_of(pid) == frozenset()
