"""Every file of a lock list: which are tried, what ends the work early, and what a preview says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.clock import FakeClock
from stoker.core.digests import digest_bytes
from stoker.core.errors import AuthRefused, NetworkFailed, NoSpace, NotOnServer
from stoker.host.http.exchange import Request
from stoker.host.resources import SPARE_BYTES
from stoker.store.memo import Memo
from stoker.transfer.download.lock_list import LockedFile
from stoker.transfer.download.types import DownloadStop, DownloadTimeouts, DownloadTools
from stoker.transfer.hub.client import Hub
from stoker.transfer.hub.listing import HubSettings
from stoker.transfer.hub.single_files import fetch_list, preview_list
from tests.fakes.transport import FakeTransport, Scripted

DATA = b"a listed file"
HUB = "https://hub.example"


def listed(server: str, number: int) -> LockedFile:
    return LockedFile(
        id=f"{server}{number}",
        sha256=digest_bytes(DATA),
        size_bytes=len(DATA),
        urls=(f"https://{server}.example/{server}{number}.bin",),
    )


def answer(request: Request) -> Scripted:
    if "//gone." in request.url:
        raise NetworkFailed("gone", reason="refused", is_lasting=True)
    if "//hub." in request.url:
        return Scripted(status=403, fields=(("X-Error-Code", "GatedRepo"),))
    return Scripted(status=200, fields=(("Content-Length", str(len(DATA))),), body=DATA)


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder = str(folder / "models")
        self.transport = FakeTransport(answer)
        self.free_bytes = 1 << 50
        self.memo = Memo(str(folder / "memo.db"), set_aside=lambda path, reason: None)

    def hub(self, *, offline: bool = False) -> Hub:
        tools = DownloadTools(
            transport=self.transport,
            clock=FakeClock(),
            free_bytes=lambda _: self.free_bytes,
            jitter=lambda: 0.5,
        )
        settings = HubSettings(endpoint=HUB, cache="nowhere", token="hf_secret", offline=offline)
        return Hub(settings, tools=tools, patience=DownloadTimeouts(), stop=DownloadStop(), memo=self.memo)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_outcomes_come_in_the_order_of_the_list_and_one_refusal_keeps_nobody_else_away(scene: Scene) -> None:
    files = [listed("good", 1), listed("hub", 1), listed("good", 2), listed("hub", 2)]
    outcomes = fetch_list(scene.hub(), files, scene.folder, workers=3)
    assert [one.label for one in outcomes] == [file.id for file in files]
    assert [one.fetched is not None for one in outcomes] == [True, False, True, False]
    assert isinstance(outcomes[1].error, AuthRefused)
    assert "gated" in outcomes[1].error.message


def test_the_token_goes_to_the_hub_and_to_nobody_else(scene: Scene) -> None:
    fetch_list(scene.hub(), [listed("hub", 1), listed("good", 1)], scene.folder)
    sent = {request.url: request.headers.get("Authorization") for request in scene.transport.requests}
    assert sent == {f"{HUB}/hub1.bin": "Bearer hf_secret", "https://good.example/good1.bin": None}


def test_a_server_that_is_gone_is_not_asked_for_everything_and_others_are(scene: Scene) -> None:
    files = [*(listed("gone", number) for number in range(20)), listed("good", 1)]
    outcomes = fetch_list(scene.hub(), files, scene.folder)
    assert len([request for request in scene.transport.requests if "//gone." in request.url]) == 3
    assert [one.label for one in outcomes if one.error is None] == ["good1"]


def test_what_has_no_room_all_together_is_refused_before_the_first_byte(scene: Scene) -> None:
    scene.free_bytes = SPARE_BYTES + 2 * len(DATA) - 1
    files = [listed("good", 1), listed("good", 2)]
    assert preview_list(scene.hub(), files, scene.folder).has_space is False
    with pytest.raises(NoSpace, match="2 files"):
        fetch_list(scene.hub(), files, scene.folder)
    assert scene.transport.requests == []


def test_a_preview_says_what_is_there_what_would_come_and_offline_what_would_not(scene: Scene) -> None:
    files = [listed("good", 1), listed("good", 2)]
    fetch_list(scene.hub(), files[:1], scene.folder)
    scene.transport.requests.clear()
    preview = preview_list(scene.hub(), files, scene.folder)
    assert [(one.is_there, one.to_come_bytes) for one in preview.files] == [(True, 0), (False, len(DATA))]
    again = preview_list(scene.hub(), files, scene.folder, force=True)
    assert again.to_come_bytes == 2 * len(DATA)
    offline = preview_list(scene.hub(offline=True), files, scene.folder)
    assert (offline.to_come_bytes, [one.is_missing for one in offline.files]) == (0, [False, True])
    outcomes = fetch_list(scene.hub(offline=True), files, scene.folder)
    assert [isinstance(one.error, NotOnServer) for one in outcomes] == [False, True]
    assert scene.transport.requests == []
