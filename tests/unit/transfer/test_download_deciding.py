from __future__ import annotations

import pytest

from stoker.core.digests import Digest
from stoker.core.frozen import changed
from stoker.transfer.download.partial import Sidecar, strong_etag
from stoker.transfer.download.resumption import (
    RangeRequest,
    ResumeAction,
    ask_for,
    decide_partial,
    digests_match,
    request_for,
)
from stoker.transfer.download.types import DownloadRequest

A, B = Digest("a" * 64), Digest("b" * 64)
WANTED = DownloadRequest(url="https://host/file?signature=1", size_bytes=100, sha256=A)
BARE = DownloadRequest(url="https://host/file?signature=2")
SIDECAR = Sidecar(url="https://host/file", size_bytes=100, sha256=A, etag='"one"', durable_bytes=40, boot_id="now")


def _plan(wanted=WANTED, length=60, sidecar=SIDECAR, boot_id="now"):
    return decide_partial(wanted, length, sidecar, boot_id=boot_id)


def test_without_a_partial_file_everything_is_fetched():
    assert _plan(length=None).move is ResumeAction.FRESH
    assert _plan(length=None, sidecar=None).move is ResumeAction.FRESH


def test_a_partial_file_of_the_wanted_version_is_gone_on_with():
    plan = _plan()
    assert (plan.move, plan.offset) == (ResumeAction.RESUME, 60)
    assert "60 of 100" in plan.why


@pytest.mark.parametrize(
    ("sidecar", "why"),
    [
        (None, "no record"),
        ("its record is damaged", "damaged"),
        (changed(SIDECAR, sha256=B), "another version: its sha256"),
        (changed(SIDECAR, size_bytes=99), "another version: its size"),
    ],
)
def test_a_partial_file_of_another_or_no_known_version_is_thrown_away(sidecar, why):
    plan = _plan(sidecar=sidecar)
    assert plan.move is ResumeAction.RESTART
    assert why in plan.why


def test_a_digest_pins_the_version_whatever_the_address_and_commit():
    moved = changed(SIDECAR, url="https://mirror/file", commit="old", etag="")
    assert _plan(sidecar=moved).move is ResumeAction.RESUME
    by_git = changed(moved, sha256="", git_sha1="c" * 40)
    assert (
        _plan(DownloadRequest(url="https://host/file", git_sha1="C" * 40), sidecar=by_git).move is ResumeAction.RESUME
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"url": "https://mirror/file"}, "another URL"),
        ({"commit": "other"}, "commit other, not unknown"),
        ({"etag": ""}, "may no longer have"),
        ({"size_bytes": None}, "size unknown"),
    ],
)
def test_without_a_digest_the_version_is_pinned_by_address_commit_and_validator(change, why):
    bare = changed(SIDECAR, sha256="")
    assert _plan(BARE, sidecar=bare).move is ResumeAction.RESUME
    plan = _plan(BARE, sidecar=changed(bare, **change))
    assert plan.move is ResumeAction.RESTART
    assert why in plan.why


def test_a_digest_that_became_known_later_does_not_hinder():
    assert _plan(sidecar=changed(SIDECAR, sha256="")).move is ResumeAction.RESUME
    assert _plan(sidecar=changed(SIDECAR, sha256="", etag="")).move is ResumeAction.RESTART


def test_a_whole_partial_file_is_only_checked():
    plan = _plan(length=100)
    assert (plan.move, plan.offset) == (ResumeAction.FINISH, 100)


def test_a_partial_file_longer_than_the_whole_is_thrown_away():
    assert _plan(length=101).move is ResumeAction.RESTART


@pytest.mark.parametrize("boot_id", ["later", ""])
def test_after_a_power_cut_only_synced_bytes_count(boot_id):
    plan = _plan(boot_id=boot_id)
    assert (plan.move, plan.offset) == (ResumeAction.RESUME, 40)
    assert "20 bytes are not trusted" in plan.why
    assert _plan(length=30, boot_id=boot_id).offset == 30
    assert _plan(length=100, boot_id=boot_id).offset == 40
    assert _plan(sidecar=changed(SIDECAR, durable_bytes=0), boot_id=boot_id).move is ResumeAction.RESTART


def test_an_empty_partial_file_is_begun_anew():
    assert _plan(length=0).move is ResumeAction.RESTART


def test_the_rest_is_asked_for_under_a_strong_tag_or_else_a_date():
    dated = changed(SIDECAR, last_modified="date")
    assert ask_for(WANTED, dated, 60) == RangeRequest(offset=60, if_range='"one"')
    assert ask_for(WANTED, changed(dated, etag=""), 60) == RangeRequest(offset=60, if_range="date")
    assert ask_for(WANTED, changed(SIDECAR, etag=""), 60) == RangeRequest(offset=60)


def test_validators_of_another_server_are_not_used():
    assert ask_for(WANTED, changed(SIDECAR, url="https://mirror/file"), 60) == RangeRequest(offset=60)


def test_the_whole_is_asked_for_plainly():
    assert ask_for(WANTED, SIDECAR, 0) == RangeRequest()
    assert ask_for(WANTED, None, 0) == RangeRequest()


def test_requests_are_written_as_decided():
    wanted = changed(WANTED, headers={"Authorization": "Bearer t"})
    assert request_for(wanted, RangeRequest()).headers == {"Authorization": "Bearer t"}
    resumed = request_for(wanted, RangeRequest(offset=5, if_range='"one"'))
    assert resumed.url == wanted.url
    assert resumed.headers == {"Authorization": "Bearer t", "Range": "bytes=5-", "If-Range": '"one"'}
    assert "If-Range" not in request_for(wanted, RangeRequest(offset=5)).headers


@pytest.mark.parametrize(
    ("text", "expected"),
    [('"a"', '"a"'), ('W/"a"', ""), (None, ""), ("", ""), ("a", ""), ('"\u00e9"', ""), ('"a\n"', "")],
)
def test_only_a_strong_tag_that_can_be_sent_back_counts(text, expected):
    assert strong_etag(text) == expected


def test_digests_are_compared_without_regard_to_case():
    wanted = DownloadRequest(url="", sha256=Digest("A" * 64), git_sha1="B" * 40)
    assert digests_match(wanted, "a" * 64, "b" * 40)
    assert not digests_match(wanted, "a" * 64, "c" * 40)
    assert not digests_match(wanted, "c" * 64, "b" * 40)
    assert digests_match(DownloadRequest(url=""), "c" * 64, "")
