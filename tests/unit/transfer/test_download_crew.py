from __future__ import annotations

import pytest

from stoker.core.errors import LocalFile, NetworkFailed, NoSpace, StokerError
from stoker.transfer.download.download_events import DownloadPool
from stoker.transfer.download.types import DownloadOutcome

NAMES = [f"server{number % 2}/{number}" for number in range(50)]


class Tried:
    """Work that fails with an error wherever it is told to, and notes what it was asked for."""

    def __init__(self, error: StokerError | None = None, where: str = "") -> None:
        self.names: list[str] = []
        self._error = error
        self._where = where

    def __call__(self, name: str) -> list[DownloadOutcome]:
        self.names.append(name)
        return [DownloadOutcome(label=name, error=self._error if self._where in name else None)]

    def by(self, workers: int, *, by_server: bool = False) -> list[DownloadOutcome]:
        def server(name: str) -> str:
            return name.partition("/")[0] if by_server else ""

        return DownloadPool(NAMES, self, labels=lambda name: [name], ends_all=(NoSpace,), server=server).work(workers)


def test_a_crew_gives_every_outcome_back() -> None:
    assert sorted(one.label for one in Tried().by(4)) == sorted(NAMES)


@pytest.mark.parametrize(("error", "most"), [(NoSpace("full"), 1), (NetworkFailed("gone"), 3), (LocalFile("bad"), 50)])
def test_a_crew_does_not_go_on_where_there_is_no_point(error: StokerError, most: int) -> None:
    tried = Tried(error)
    outcomes = tried.by(1)
    assert len(tried.names) == most
    assert len(outcomes) == 50
    assert all(one.error is error for one in outcomes)


def test_a_server_that_is_gone_keeps_only_its_own_files_away() -> None:
    tried = Tried(NetworkFailed("gone"), "server1/")
    outcomes = tried.by(1, by_server=True)
    assert len([name for name in tried.names if name.startswith("server1/")]) == 3
    assert {one.label for one in outcomes if one.error} == {name for name in NAMES if name.startswith("server1/")}


def test_what_comes_between_shows_that_the_network_is_there() -> None:
    tried = Tried(NetworkFailed("gone"), "server1/")
    tried.by(1)
    assert tried.names == NAMES


def test_a_file_that_fails_by_itself_stops_nobody() -> None:
    assert [one.label for one in Tried(LocalFile("bad"), "1/7").by(3) if one.error] == ["server1/7"]


def test_a_bug_in_a_thread_is_raised_where_it_can_be_seen() -> None:
    def work(name: str) -> list[DownloadOutcome]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        DownloadPool(NAMES, work, labels=lambda name: [name], ends_all=()).work(3)


def test_a_server_that_was_waited_for_once_is_not_waited_for_again() -> None:
    tried = Tried(NetworkFailed("gone", timed_out=True))
    assert len(tried.by(1)) == 50
    assert len(tried.names) == 1
