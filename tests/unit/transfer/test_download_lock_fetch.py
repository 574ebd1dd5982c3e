from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stoker.core.clock import FakeClock
from stoker.core.digests import digest_bytes
from stoker.core.errors import NetworkFailed, NotOnServer
from stoker.core.events import Event
from stoker.transfer.download.lock_list import LockedFile
from stoker.transfer.download.types import DownloadStop, DownloadTimeouts, DownloadTools, FetchedFile, TargetFile
from stoker.transfer.hub.single_files import fetch_listed
from tests.fakes.transport import FakeTransport, Scripted

DATA = b"a listed file"
FILE = LockedFile(
    id="org/repo/a.bin",
    sha256=digest_bytes(DATA),
    size_bytes=len(DATA),
    urls=("https://one.example/a.bin", "https://two.example/a.bin"),
    license="",
)


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.clock = FakeClock()
        self.transport = FakeTransport(
            lambda request: Scripted(status=404 if "one." in request.url else 200, body=DATA)
        )

    def fetch(self, *, offline: bool = False) -> FetchedFile:
        tools = DownloadTools(
            transport=self.transport,
            clock=self.clock,
            free_bytes=lambda _: 1 << 50,
            jitter=lambda: 0.5,
            say=self.events.append,
        )
        return fetch_listed(
            FILE,
            TargetFile(folder=str(self.folder), name="a.bin"),
            tools=tools,
            patience=DownloadTimeouts(),
            stop=DownloadStop(),
            headers_for=lambda url: {},
            offline=offline,
        )


def test_the_next_address_is_tried_and_that_is_told(tmp_path):
    scene = Scene(tmp_path)
    fetched = scene.fetch()
    assert fetched.url == FILE.urls[1]
    (retry,) = [event.fields for event in scene.events if event.fields["phase"] == "retry"]
    assert (retry["file"], retry["reason"], retry["attempt"]) == (FILE.id, "mirror", 1)


def test_where_no_address_has_it_all_of_them_are_named(tmp_path):
    scene = Scene(tmp_path)
    scene.transport.script = lambda request: Scripted(status=404)
    with pytest.raises(NotOnServer, match="none of 2 URLs has org/repo/a") as absent:
        scene.fetch()
    tried: Any = absent.value.data["tried"]
    assert [one["url"] for one in tried] == list(FILE.urls)


def test_offline_the_disk_is_asked_once_and_no_address_is_blamed(tmp_path):
    scene = Scene(tmp_path)
    with pytest.raises(NotOnServer, match="not on this machine") as absent:
        scene.fetch(offline=True)
    assert "URLs" not in absent.value.message
    assert scene.transport.requests == []


def test_addresses_that_are_all_away_are_tried_in_turn_until_one_is_back(tmp_path):
    scene = Scene(tmp_path)
    scene.transport.script = lambda request: (
        Scripted(status=200, body=DATA)
        if scene.clock.monotonic_s() > 90 and "two." in request.url
        else Scripted(status=503)
    )
    assert scene.fetch().url == FILE.urls[1]
    assert 90 < scene.clock.monotonic_s() < 180
    waits = [event.fields for event in scene.events if event.fields.get("reason") == "503"]
    assert any("none of 2 URLs is available" in str(one["msg"]) for one in waits)


def test_addresses_that_stay_away_are_given_up_when_patience_is_over(tmp_path):
    scene = Scene(tmp_path)
    scene.transport.script = lambda request: Scripted(status=503)
    with pytest.raises(NetworkFailed, match="none of 2 URLs"):
        scene.fetch()
    assert 1800 <= scene.clock.monotonic_s() < 1900
