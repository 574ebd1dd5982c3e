"""F66, F67, F70, F72: what lies beside a download is torn, foreign, edited or older than the last power cut."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.errors import LockHeld
from stoker.core.frozen import changed
from stoker.host.identity import of_pid
from stoker.transfer.download.partial import Sidecar, dump_sidecar, load_sidecar
from stoker.transfer.download.types import TargetFile
from tests.fault.download_lab import HALF, NAME, ONE, SIZE, TWO, both_ways, open_lab, random_bytes
from tests.fault.download_parent import ONCE, Downloads
from tests.servers import habits as bad
from tests.servers.faulty import FaultyServer, Version, well
from tests.unit.host.real_processes import wait_until

SIDECAR = f"{NAME}.part.json"


@pytest.fixture
def lab(memory):
    with open_lab(memory / "out") as lab:
        yield lab


# --- F66: a power cut

BIG = Version(data=random_bytes(3 << 20, 8))
TAILS = {
    "zeroes": lambda data, durable: data[:durable] + b"\0" * (len(data) - durable),
    "rubbish": lambda data, durable: data[:durable] + os.urandom(len(data) - durable),
    "missing": lambda data, durable: data[:durable],
    "half missing": lambda data, durable: data[: (durable + len(data)) // 2],
    "longer": lambda data, durable: data[:durable] + b"\0" * len(BIG.data),
}


def lose_power(folder: Path, tail: str) -> int:
    """Start the machine anew: whatever lies beyond what was synced is gone, or was never written. Say where that is."""
    record = load_sidecar((folder / SIDECAR).read_bytes())
    assert isinstance(record, Sidecar)
    (folder / SIDECAR).write_bytes(dump_sidecar(changed(record, boot_id="another")))
    partial = folder / f"{NAME}.part"
    partial.write_bytes(TAILS[tail](partial.read_bytes(), record.durable_bytes))
    return record.durable_bytes


@both_ways
@pytest.mark.parametrize("tail", TAILS)
def test_f66_after_a_power_cut_only_what_was_synced_is_believed(memory, with_digest, tail):
    """One run ends in order after a MiB, which is synced; the next one is killed after another that is not."""
    wanted = BIG if with_digest else None
    reached = threading.Event()
    with FaultyServer(BIG, bad.breaking_off(1 << 20)) as server, Downloads(server, memory / "out") as downloads:
        assert downloads.run(wanted, patience=ONCE) == 14
        server.become(bad.stalling(1 << 20, reached))
        downloads.start(wanted)
        assert reached.wait(20)
        wait_until(lambda: downloads.partial_bytes() == 2 << 20)
        downloads.kill()
        downloads.end()
        assert lose_power(downloads.folder, tail) == 1 << 20
        server.become(well)
        assert downloads.run(wanted) == 0
        assert downloads.path.read_bytes() == BIG.data
        assert [asked.first_byte for asked in server.gets()] == [0 if tail == "longer" else 1 << 20]


def test_f66_without_a_power_cut_what_was_written_is_believed(memory):
    reached = threading.Event()
    with FaultyServer(BIG, bad.stalling(2 << 20, reached)) as server, Downloads(server, memory / "out") as downloads:
        downloads.start(BIG)
        assert reached.wait(20)
        wait_until(lambda: downloads.partial_bytes() == 2 << 20)
        downloads.kill()
        downloads.end()
        server.become(well)
        assert downloads.run(BIG) == 0
        assert [asked.first_byte for asked in server.gets()] == [2 << 20]


# --- F67: the sidecar

SPOILS = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "one-bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "one-digit": lambda data: data.replace(b'"durable_bytes":0', b'"durable_bytes":9'),
    "zeroes": lambda data: b"\0" * len(data),
    "not-json": lambda data: b"hello",
    "a-list": lambda data: b"[1, 2]",
    "null": lambda data: b"null",
    "nested": lambda data: b"[" * 100_000,
    "not-unicode": lambda data: b"\xff\xfe" + data,
    "a-million-bytes": lambda data: b" " * 1_000_000,
    "other-keys": lambda data: b'{"url": "x", "etag": "y"}',
    "hf-hub-style": lambda data: b'0123abc\n"etag"\n1700000000.0\n',
}


@both_ways
@pytest.mark.parametrize("spoil", SPOILS)
def test_f67_a_sidecar_that_can_not_be_read_costs_a_start_from_zero_and_deletes_nothing(lab, with_digest, spoil):
    wanted = ONE if with_digest else None
    lab.interrupt(HALF, wanted)
    path = lab.folder / SIDECAR
    spoilt = SPOILS[spoil](path.read_bytes())
    was_changed = spoilt != path.read_bytes()
    path.write_bytes(spoilt)
    lab.server.become(well)
    lab.fetch(wanted)
    assert lab.has() == ONE.data
    assert lab.leftovers() == ([f"{SIDECAR}~", f"{lab.partial.name}~"] if was_changed else [])
    if was_changed:
        assert (lab.folder / f"{SIDECAR}~").read_bytes() == spoilt
        assert [asked.first_byte for asked in lab.server.gets()] == [0]


@both_ways
def test_f67_a_partial_without_a_sidecar_is_of_no_known_version(lab, with_digest):
    lab.interrupt(HALF, ONE if with_digest else None)
    (lab.folder / SIDECAR).unlink()
    lab.server.become(well)
    lab.fetch(ONE if with_digest else None)
    assert lab.has() == ONE.data
    assert [asked.first_byte for asked in lab.server.gets()] == [0]


@pytest.mark.parametrize("force", [False, True])
def test_f67_what_lies_under_the_names_of_side_files_and_is_not_ours_is_never_deleted(lab, force):
    lab.partial.write_bytes(b"a draft")
    (lab.folder / SIDECAR).write_bytes(b'{"mine": 1}')
    lab.fetch(ONE, force=force)
    assert lab.has() == ONE.data
    assert (lab.folder / f"{NAME}.part~").read_bytes() == b"a draft"
    assert (lab.folder / f"{SIDECAR}~").read_bytes() == b'{"mine": 1}'
    assert lab.reasons() == ["restart"]
    for number in range(2, 10):
        lab.path.unlink()
        lab.partial.write_bytes(b"another draft")
        lab.fetch(ONE, force=force)
        assert (lab.folder / f"{NAME}.part~{number}").read_bytes() == b"another draft"
    lab.path.unlink()
    lab.partial.write_bytes(b"one too many")
    assert lab.code(ONE, force=force) == 16
    assert lab.partial.read_bytes() == b"one too many"
    assert (lab.folder / f"{NAME}.part~").read_bytes() == b"a draft"


@pytest.mark.parametrize("force", [False, True])
def test_f67_a_neighbour_that_was_fetched_by_its_own_name_stays_where_it_is(lab, force):
    lab.fetch(ONE, landing=TargetFile(folder=str(lab.folder), name=lab.partial.name))
    assert lab.code(ONE, force=force) == 16
    assert lab.partial.read_bytes() == ONE.data
    assert lab.has() is None


@pytest.mark.parametrize("content", [b"[[package]]\n" * 1000, b"x", b'{"a": 1}'])
def test_f67_a_file_of_somebody_elses_under_the_name_of_the_lock_is_never_emptied(lab, content):
    lock = lab.folder / f"{NAME}.lock"
    lock.write_bytes(content)
    assert (lab.code(ONE), lab.code(ONE, force=True)) == (16, 16)
    assert lock.read_bytes() == content
    assert lab.server.asked == []


def test_f67_a_record_with_a_validator_that_no_head_can_hold_is_not_sent(lab):
    lab.interrupt(HALF)
    record = load_sidecar((lab.folder / SIDECAR).read_bytes())
    assert isinstance(record, Sidecar)
    (lab.folder / SIDECAR).write_bytes(dump_sidecar(changed(record, etag='"a"\r\nX-Evil: 1')))
    lab.server.become(well)
    lab.fetch()
    assert lab.has() == ONE.data
    assert [asked.first_byte for asked in lab.server.gets()] == [0]


def test_f67_a_record_signed_by_a_living_stranger_is_named_in_the_hint(lab):
    lab.interrupt(HALF, ONE)
    record = load_sidecar((lab.folder / SIDECAR).read_bytes())
    assert isinstance(record, Sidecar)
    with subprocess.Popen(["/bin/sleep", "60"]) as other:
        try:
            writer = of_pid(other.pid)
            (lab.folder / SIDECAR).write_bytes(dump_sidecar(changed(record, writer=writer)))
            with pytest.raises(LockHeld) as caught:
                lab.fetch(ONE)
        finally:
            other.kill()
    assert str(lab.folder / SIDECAR) in caught.value.hint


@both_ways
def test_f67_a_sidecar_without_a_partial_promises_nothing(lab, with_digest):
    lab.interrupt(HALF, ONE if with_digest else None)
    lab.partial.unlink()
    lab.server.become(well)
    lab.fetch(ONE if with_digest else None)
    assert lab.has() == ONE.data
    assert [asked.first_byte for asked in lab.server.gets()] == [0]


def test_f67_a_sidecar_of_another_file_is_not_taken_for_ours(lab):
    """Somebody copied a partial and its record from another download of the same size."""
    lab.server.versions["/other"] = TWO
    lab.interrupt(HALF, url=f"{lab.server.origin}/other")
    lab.server.become(well)
    lab.fetch()
    assert lab.has() == ONE.data
    assert [asked.first_byte for asked in lab.server.gets()] == [0]


@both_ways
def test_f67_a_folder_in_the_place_of_a_side_file_is_told_or_got_round(lab, with_digest):
    for name in (SIDECAR, lab.partial.name, f"{NAME}.lock"):
        (lab.folder / name).unlink(missing_ok=True)
        (lab.folder / name).mkdir()
        code = lab.code(ONE if with_digest else None)
        assert (code, lab.has()) in ((0, ONE.data), (16, None))
        lab.path.unlink(missing_ok=True)
        if (lab.folder / name).is_dir():
            (lab.folder / name).rmdir()


# --- F70: the partial


def edited(data: bytes, how: str) -> bytes:
    if how == "one byte":
        return data[:1000] + bytes([data[1000] ^ 1]) + data[1001:]
    if how == "shorter":
        return data[: len(data) // 2]
    if how == "other bytes":
        return os.urandom(len(data))
    return b""


@pytest.mark.parametrize("how", ["one byte", "shorter", "other bytes", "emptied"])
def test_f70_an_edited_partial_is_found_out_by_the_digest_and_fetched_anew_once(lab, how):
    lab.interrupt(HALF, ONE)
    lab.partial.write_bytes(edited(lab.partial.read_bytes(), how))
    lab.server.become(well)
    lab.fetch(ONE)
    assert lab.has() == ONE.data
    assert len(lab.server.gets()) == (1 if how in ("shorter", "emptied") else 2)
    if how in ("one byte", "other bytes"):
        assert lab.reasons()


@both_ways
def test_f70_a_partial_that_is_swapped_for_another_file_while_it_is_fetched_never_gets_the_name(lab, with_digest):
    """By a program that does the same download without our lock: what we hold open is no longer what has the name."""

    def swap() -> None:
        wait_until(lambda: lab.partial.exists() and lab.partial.stat().st_size == HALF)
        other = lab.folder / "other"
        other.write_bytes(b"not ours" * 1000)
        other.rename(lab.partial)

    lab.server.become(bad.at_first(1, bad.in_pieces(SIZE, swap, start=HALF)))
    code = lab.code(ONE if with_digest else None)
    assert (code, lab.has()) in ((0, ONE.data), (14, None), (16, None))
    lab.server.become(well)
    lab.fetch(ONE if with_digest else None)
    assert lab.has() == ONE.data


# --- F72: clocks


@pytest.mark.parametrize("jump_s", [-10 * 365 * 86400.0, -3600.0, 3600.0, 10 * 365 * 86400.0])
def test_f72_a_jump_of_the_clock_changes_nothing(memory, jump_s):
    clock = FakeClock()
    with open_lab(memory / "out", clock=clock) as lab:
        lab.server.become(bad.in_pieces(50_000, lambda: clock.jump(jump_s)))
        lab.fetch(ONE)
        assert lab.has() == ONE.data
        assert lab.reasons() == []


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_f72_a_jump_of_the_clock_between_runs_or_during_a_pause_changes_nothing(memory, jump_s):
    clock = FakeClock()
    with open_lab(memory / "out", clock=clock) as lab:
        lab.interrupt(HALF, ONE)
        clock.jump(jump_s)

        def busy(asked, version):
            clock.jump(jump_s)
            return bad.status(429, Retry_After="4")(asked, version)

        lab.server.become(bad.at_first(1, busy))
        before_s = clock.monotonic_s()
        lab.fetch(ONE)
        assert lab.has() == ONE.data
        assert clock.monotonic_s() - before_s == pytest.approx(4)
