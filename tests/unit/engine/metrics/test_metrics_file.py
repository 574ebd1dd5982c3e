from __future__ import annotations

import math
import os
import struct
import threading
from pathlib import Path

import pytest

from stoker.core.errors import LocalFile
from stoker.engine.metrics import metrics_file
from stoker.engine.metrics.metrics_file import (
    LARGEST_PAYLOAD_BYTES,
    MAGIC,
    NAME_BYTES,
    Damage,
    MetricRow,
    MetricSource,
    clean_name,
    clean_step,
    encode_frame,
    read_frames,
    read_metrics,
)

ROWS = [
    MetricRow(0, 1_700_000_000.25, "loss", 0.5),
    MetricRow(1, 1_700_000_000.5, "größe/λ", -0.0),
    MetricRow(2, 1_700_000_001.0, "loss", math.inf),
    MetricRow(-(2**63), 0.0, "x", -math.inf),
    MetricRow(2**63 - 1, 1e300, "x", 5e-324),
]
FRAME = encode_frame(ROWS)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "a.skm"
    path.write_bytes(FRAME)
    assert list(read_metrics([str(path)])) == ROWS


def test_nan_and_the_sign_of_zero_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.skm"
    path.write_bytes(encode_frame([MetricRow(1, 0.0, "a", math.nan), MetricRow(1, 0.0, "b", -0.0)]))
    nan, zero = read_metrics([str(path)])
    assert math.isnan(nan.value)
    assert math.copysign(1, zero.value) == -1


def test_the_format_does_not_change_by_accident() -> None:
    assert encode_frame([MetricRow(3, 2.0, "é", 1.5)], source=MetricSource.STDOUT, lost=7).hex() == (
        "93534b4d310d0a1a"  # magic
        "38000000"  # payload_bytes
        "9e90c921"  # checksum
        "0100000001000000"  # rows, names
        "0700000000000000"  # lost
        "0100000000000000"  # source
        "0300000000000000"  # steps
        "0000000000000040"  # times
        "000000000000f83f"  # values
        "00000000"  # name indices
        "0200c3a9"  # names
    )


def test_a_frame_knows_its_source_and_what_was_lost_before_it(tmp_path: Path) -> None:
    path = tmp_path / "a.skm"
    path.write_bytes(encode_frame(ROWS, source=MetricSource.STDOUT, lost=12))
    (frame,) = read_frames(str(path))
    assert (frame.source, frame.lost) == (MetricSource.STDOUT, 12)
    assert all(row.source is MetricSource.STDOUT for row in frame.rows())


def test_reading_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.skm"
    path.write_bytes(FRAME)
    (first,) = read_frames(str(path))
    with path.open("ab") as file:
        file.write(FRAME)
    (second,) = read_frames(str(path), start_bytes=first.end_bytes)
    assert second.end_bytes == 2 * len(FRAME)


def test_a_missing_file_has_no_rows(tmp_path: Path) -> None:
    assert list(read_metrics([str(tmp_path / "none.skm")])) == []


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(LocalFile, match="not a file"):
            list(read_metrics([str(path)]))


@pytest.mark.parametrize("cut", [1, 7, 8, 15, 16, len(FRAME) // 2, len(FRAME) - 1])
def test_a_torn_tail_is_passed_over_and_told(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.skm"
    path.write_bytes(FRAME + FRAME[:cut])
    damages: list[Damage] = []
    assert list(read_metrics([str(path)], on_damage=damages.append)) == ROWS
    assert damages == [Damage(path=str(path), start_bytes=len(FRAME), size_bytes=cut, is_tail=True)]


@pytest.mark.parametrize("junk", [b"x", MAGIC, MAGIC[:5], b"\0" * 100_000, FRAME[:-1], FRAME[:20], MAGIC + b"\xff" * 8])
def test_behind_damage_reading_goes_on_at_the_next_whole_frame(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "a.skm"
    path.write_bytes(FRAME + junk + FRAME)
    damages: list[Damage] = []
    assert list(read_metrics([str(path)], on_damage=damages.append)) == ROWS * 2
    assert damages == [Damage(path=str(path), start_bytes=len(FRAME), size_bytes=len(junk), is_tail=False)]


def test_a_file_of_false_headers_is_given_up_instead_of_checked_for_hours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []
    check = metrics_file._checksum

    def counted(data: bytes) -> int:
        checked.append(len(data))
        return check(data)

    monkeypatch.setattr(metrics_file, "_checksum", counted)
    path = tmp_path / "a.skm"
    false = struct.pack("<8sII", MAGIC, 1 << 20, 7)
    path.write_bytes(FRAME + false * (1 << 17) + FRAME)
    damages: list[Damage] = []
    assert list(read_metrics([str(path)], on_damage=damages.append)) == ROWS
    left_bytes = path.stat().st_size - len(FRAME)
    assert damages == [Damage(path=str(path), start_bytes=len(FRAME), size_bytes=left_bytes, is_tail=True)]
    assert sum(checked) < 64 << 20


def test_every_flipped_bit_costs_its_own_frame_only(tmp_path: Path) -> None:
    path = tmp_path / "a.skm"
    whole = FRAME + FRAME + FRAME
    for at in range(len(FRAME), 2 * len(FRAME)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        path.write_bytes(damaged)
        assert list(read_metrics([str(path)])) == ROWS * 2, at


def test_counts_that_do_not_fit_the_payload_are_damage_even_if_the_checksum_is_right(tmp_path: Path) -> None:
    from zlib import crc32

    path = tmp_path / "a.skm"
    payload = bytearray(FRAME[16:])
    for rows, names, source in ((2**32 - 1, 3, 0), (5, 2**32 - 1, 0), (4, 3, 0), (5, 2, 0), (5, 3, 9), (0, 0, 0)):
        struct.pack_into("<II", payload, 0, rows, names)
        struct.pack_into("<B", payload, 16, source)
        size = struct.pack("<I", len(payload))
        path.write_bytes(MAGIC + size + struct.pack("<I", crc32(payload, crc32(size))) + payload + FRAME)
        assert list(read_metrics([str(path)])) == ROWS


def test_a_length_beyond_reason_is_not_believed(tmp_path: Path) -> None:
    path = tmp_path / "a.skm"
    path.write_bytes(MAGIC + struct.pack("<II", LARGEST_PAYLOAD_BYTES + 1, 0) + FRAME)
    assert list(read_metrics([str(path)])) == ROWS


def test_writers_that_share_a_file_never_meet_inside_a_frame(tmp_path: Path) -> None:
    path = tmp_path / "a.skm"

    def write(number: int) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for step in range(200):
            os.write(descriptor, encode_frame([MetricRow(step, 0.0, f"writer{number}", 1.0)] * 50))
        os.close(descriptor)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    damages: list[Damage] = []
    rows = list(read_metrics([str(path)], on_damage=damages.append))
    assert not damages
    assert len(rows) == 4 * 200 * 50
    for number in range(4):
        steps = [row.step for row in rows if row.name == f"writer{number}"]
        assert steps == sorted(steps)


def test_small_frames_are_read_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "a.skm"
    path.write_bytes(encode_frame(ROWS[:1]) * 40_000)
    assert sum(1 for _ in read_frames(str(path))) == 40_000


def test_names_are_made_to_fit() -> None:
    assert clean_name("loss") == "loss"
    assert clean_name("") == "unnamed"
    assert clean_name("x" * 1000) == "x" * NAME_BYTES
    assert clean_name("é" * 200) == "é" * (NAME_BYTES // 2)
    assert clean_name("a" + "é" * 200) == "a" + "é" * ((NAME_BYTES - 1) // 2)
    assert clean_name("\udcff") == "?"


def test_steps_are_made_to_fit() -> None:
    assert clean_step(10**30) == 2**63 - 1
    assert clean_step(-(10**30)) == -(2**63)
    assert clean_step(7) == 7
