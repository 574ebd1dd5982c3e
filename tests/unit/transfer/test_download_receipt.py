"""Receipts say what came from where, survive being moved around, and are never believed once they were touched."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from stoker.core.digests import Digest, digest_bytes
from stoker.core.errors import NotVerified
from stoker.transfer.download.receipts import Receipt, Receipts, parse_receipt, read_receipt, receipt_of
from stoker.transfer.download.types import FetchedFile, Status

BYTES = b"weights"
DIGEST = digest_bytes(BYTES)


def a_receipt(path: str = "/models/model.gguf", sha256: Digest = DIGEST) -> Receipt:
    fetched = FetchedFile(
        path=path,
        status=Status.DOWNLOADED,
        size_bytes=len(BYTES),
        sha256=sha256,
        bytes_from_network=5,
        bytes_resumed=2,
        seconds=3.5,
        url="https://hub.example/org/repo/resolve/abc/model.gguf",
        commit="a" * 40,
        etag='"x"',
        last_modified="Sun, 06 Nov 1994 08:49:37 GMT",
    )
    return receipt_of(fetched, label="org/repo: model.gguf", ended_s=1_700_000_000.25, version="1.2.3")


def test_a_receipt_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    receipts = Receipts(str(tmp_path))
    receipts.keep([a_receipt()])
    assert read_receipt(str(tmp_path / "digests" / f"{DIGEST}.json")) == a_receipt()
    assert receipts.at("/models/model.gguf") == a_receipt()
    assert receipts.of(DIGEST) == a_receipt()


def test_it_tells_when_from_where_and_by_whom() -> None:
    body = json.loads(a_receipt().to_bytes())
    assert (body["began"], body["ended"]) == ("2023-11-14T22:13:16.750+00:00", "2023-11-14T22:13:20.250+00:00")
    assert (body["source"], body["commit"]) == ("https://hub.example/org/repo/resolve/abc/model.gguf", "a" * 40)
    assert (body["bytes_from_network"], body["bytes_resumed"], body["size_bytes"]) == (5, 2, 7)
    assert (body["sha256"], body["stoker"], body["stoker_receipt"]) == (DIGEST, "1.2.3", 1)


def test_a_later_receipt_takes_the_place_of_an_earlier_one(tmp_path: Path) -> None:
    receipts = Receipts(str(tmp_path))
    other = digest_bytes(b"other")
    receipts.keep([a_receipt()])
    receipts.keep([a_receipt(sha256=other)])
    at_place = receipts.at("/models/model.gguf")
    assert at_place is not None
    assert at_place.sha256 == other
    assert receipts.has("/models/model.gguf", other)
    assert not receipts.has("/models/model.gguf", DIGEST)
    assert receipts.of(DIGEST) == a_receipt()


def test_many_are_kept_at_once_and_nothing_else_is_left(tmp_path: Path) -> None:
    receipts = Receipts(str(tmp_path))
    many = [a_receipt(f"/models/{number}", digest_bytes(b"%d" % (number // 2))) for number in range(20)]
    receipts.keep(many)
    receipts.keep(many)
    assert [receipts.at(one.path) for one in many] == many
    assert len(list((tmp_path / "places").iterdir())) == 20
    assert len(list((tmp_path / "digests").iterdir())) == 10


def test_a_place_is_also_found_through_a_link(tmp_path: Path) -> None:
    receipts = Receipts(str(tmp_path / "receipts"))
    blob = tmp_path / "blob"
    blob.write_bytes(BYTES)
    (tmp_path / "link").symlink_to(blob)
    receipts.keep([a_receipt(str(blob))])
    assert receipts.at(str(tmp_path / "link")) == a_receipt(str(blob))


def test_a_name_that_is_no_text_has_a_receipt_too(tmp_path: Path) -> None:
    path = os.fsdecode(b"/models/\xff.bin")
    receipts = Receipts(str(tmp_path))
    receipts.keep([a_receipt(path)])
    assert receipts.at(path) == a_receipt(path)


@pytest.mark.parametrize("name", ["source", "sha256", "size_bytes", "commit", "ended", "checksum", "label"])
def test_a_receipt_that_was_edited_is_not_believed(name: str) -> None:
    body = json.loads(a_receipt().to_bytes())
    body[name] = 8 if name == "size_bytes" else "b" * 64
    with pytest.raises(NotVerified, match="does not match its own checksum"):
        parse_receipt(json.dumps(body).encode(), "r.json")


def test_a_receipt_that_was_only_laid_out_anew_is_believed() -> None:
    body = json.loads(a_receipt().to_bytes())
    assert parse_receipt(json.dumps(body, indent=8, sort_keys=True).encode(), "r.json") == a_receipt()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is not JSON"),
        (a_receipt().to_bytes()[:-9], "is not JSON"),
        (b"[]", "is not a receipt"),
        (b'{"path": "x"}', "is not a receipt"),
        (b'{"stoker_receipt": 2}', "has format 2"),
        (b'{"stoker_receipt": 1}', "does not match its own checksum"),
        (b"\xff\xfe", "is not JSON"),
    ],
)
def test_what_is_no_receipt_is_told_as_that(data: bytes, why: str) -> None:
    with pytest.raises(NotVerified, match=why):
        parse_receipt(data, "r.json")


def test_no_byte_of_a_receipt_can_flip_unnoticed() -> None:
    good = a_receipt().to_bytes()
    for place in range(len(good)):
        data = bytearray(good)
        data[place] ^= 0x01
        try:
            read = parse_receipt(bytes(data), "r.json")
        except NotVerified:
            continue
        # White space between the parts may change; what is said may not.
        assert read == a_receipt()


def test_a_damaged_receipt_counts_as_none_for_the_next_download(tmp_path: Path) -> None:
    receipts = Receipts(str(tmp_path))
    receipts.keep([a_receipt()])
    (kept,) = (tmp_path / "places").iterdir()
    kept.write_bytes(kept.read_bytes()[:40])
    assert not receipts.has("/models/model.gguf", DIGEST)
    with pytest.raises(NotVerified):
        receipts.at("/models/model.gguf")
    receipts.keep([a_receipt()])
    assert receipts.has("/models/model.gguf", DIGEST)


@pytest.mark.parametrize("kind", ["pipe", "folder", "full folder", "link", "dangling", "huge"])
def test_what_can_not_be_a_receipt_counts_as_none_and_gives_way_to_a_new_one(tmp_path: Path, kind: str) -> None:
    receipts = Receipts(str(tmp_path))
    receipts.keep([a_receipt()])
    for planted in (*tmp_path.glob("places/*"), *tmp_path.glob("digests/*")):
        planted.unlink()
        if kind == "pipe":
            os.mkfifo(planted)
        elif kind == "huge":
            planted.write_bytes(b"{" * 100_000)
        elif "folder" in kind:
            planted.mkdir()
            if kind == "full folder":
                (planted / "x").touch()
        else:
            planted.symlink_to("/dev/zero" if kind == "link" else "/nowhere")
    assert not receipts.has("/models/model.gguf", DIGEST)
    assert receipts.sha256_at("/models/model.gguf") is None
    assert receipts.place_of(DIGEST) == ""
    with pytest.raises(NotVerified, match="plain file"):
        receipts.at("/models/model.gguf")
    receipts.keep([a_receipt()])
    assert receipts.sha256_at("/models/model.gguf") == DIGEST
    assert receipts.of(DIGEST) == a_receipt()
