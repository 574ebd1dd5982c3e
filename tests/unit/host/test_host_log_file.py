from __future__ import annotations

import os
from pathlib import Path

from stoker.host.writers import LogFile, older_log
from tests.unit.host.real_mounts import small_disk
from tests.unit.host.waiting import at_once


def test_a_log_is_appended_to_and_two_generations_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(b"attempt 1\n")
    log = LogFile(str(path), generation_bytes=20)
    log.write(b"attempt 2\n")
    assert path.read_bytes() == b"attempt 1\nattempt 2\n"
    log.write(b"more\n")
    assert path.read_bytes() == b"more\n"
    assert (tmp_path / "run.1.log").read_bytes() == b"attempt 1\nattempt 2\n"
    assert log.lost_bytes == 0
    log.write(b"x" * 30)
    assert Path(older_log(str(path))).read_bytes() == b"more\n"
    assert log.lost_bytes == 20
    log.close()
    log.close()


def test_what_a_full_disk_does_not_take_is_counted_and_the_rest_is_kept(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=128k") as disk:
        log = LogFile(str(disk / "run.log"))
        for _ in range(64):
            log.write(b"x" * 4096)
        kept = (disk / "run.log").stat().st_size
        assert 0 < kept < 64 * 4096
        assert log.lost_bytes == 64 * 4096 - kept
        os.truncate(disk / "run.log", 0)
        log.write(b"room again")
        assert (disk / "run.log").read_bytes().endswith(b"room again")
        log.close()


def test_a_log_that_can_not_be_opened_loses_everything_and_stops_nobody(tmp_path: Path) -> None:
    log = LogFile(str(tmp_path / "none" / "run.log"))
    log.write(b"12345")
    assert log.lost_bytes == 5
    log.close()


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run.log").symlink_to(tmp_path / "precious")
    log = LogFile(str(tmp_path / "run.log"))
    log.write(b"12345")
    log.close()
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_folder_that_is_removed_meanwhile_stops_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = LogFile(str(folder / "run.log"), generation_bytes=10)
    log.write(b"before")
    (folder / "run.log").unlink()
    folder.rmdir()
    log.write(b"goes nowhere")
    log.write(b"and this")
    assert log.lost_bytes == len(b"goes nowhere") + len(b"and this")
    log.close()


def test_a_pipe_in_the_place_of_a_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.log")
    with at_once():
        log = LogFile(str(tmp_path / "run.log"))
        log.write(b"lost")
        log.close()
    assert log.lost_bytes == 4
