from __future__ import annotations

import pytest

from stoker.core.errors import AuthRefused, BadAnswer, HashMismatch, NetworkFailed, NotOnServer, RateLimited
from stoker.core.frozen import changed
from stoker.host.http.exchange import Headers
from stoker.transfer.download.response_rules import (
    DownloadComplete,
    DownloadRestart,
    ExpectedContent,
    FatalResponse,
    RangeResponse,
    RetryableResponse,
    UnconditionalRetry,
    UsableResponse,
    judge,
    length_of,
)
from stoker.transfer.download.resumption import RangeRequest

URL = "https://host/file?signature=secret"
WHOLE = RangeRequest()
REST = RangeRequest(offset=60, if_range='"one"')
PLAIN = RangeRequest(offset=60)
FIRST = ExpectedContent(label="the file", url=URL)
BARE = ExpectedContent(label="the file", url=URL, partial_size_bytes=100, etag='"one"')
SIZED = changed(BARE, size_bytes=100, is_pinned=True)
PART = {"Content-Range": "bytes 60-99/100", "Content-Length": "40", "ETag": '"one"'}


def _judge(status, fields=None, *, ask=WHOLE, known=FIRST, is_elsewhere=False):
    headers = Headers([(name, value) for name, value in (fields or {}).items() if value is not None])
    return judge(ask, known, RangeResponse(status=status, headers=headers, is_elsewhere=is_elsewhere), now_s=0.0)


def test_everything_is_taken_as_it_comes():
    fields = {"Content-Length": "100", "ETag": 'W/"weak"', "Last-Modified": "date"}
    verdict = _judge(200, fields)
    assert isinstance(verdict, UsableResponse)
    assert (verdict.offset, verdict.size_bytes, verdict.etag, verdict.last_modified) == (0, 100, 'W/"weak"', "date")


def test_a_body_without_length_is_as_long_as_is_known():
    assert _judge(200).size_bytes is None
    assert _judge(200, known=changed(FIRST, size_bytes=100)).size_bytes == 100


def test_a_whole_of_another_size_than_listed_is_not_taken():
    verdict = _judge(200, {"Content-Length": "21"}, known=SIZED, ask=REST)
    assert isinstance(verdict, RetryableResponse)
    assert isinstance(verdict.error, HashMismatch)
    assert "21 bytes, 100 are expected" in verdict.error.message


def test_a_part_that_is_called_everything_is_not_taken():
    part = {"Content-Length": "90", "Content-Range": "bytes 10-99/100", "ETag": '"two"'}
    again = _judge(200, part)
    assert isinstance(again, RetryableResponse)
    assert "bytes 10 to 99 with status 200" in again.error.message
    assert isinstance(_judge(200, part, known=BARE, ask=REST), DownloadRestart)
    assert isinstance(_judge(200, {"Content-Length": "50", "Content-Range": "bytes 0-49/100"}), RetryableResponse)
    assert isinstance(_judge(200, {"Content-Length": "100", "Content-Range": "bytes 0-99/100"}), UsableResponse)
    parts = {"Content-Length": "150", "Content-Type": "multipart/byteranges; boundary=cut", "ETag": '"two"'}
    assert isinstance(_judge(200, parts), RetryableResponse)
    assert isinstance(_judge(200, parts, known=BARE, ask=REST), DownloadRestart)


@pytest.mark.parametrize("length", ["-1", "ten", "1e3", "", "9" * 19])
def test_a_length_that_cannot_be_is_not_taken(length):
    verdict = _judge(200, {"Content-Length": length})
    assert isinstance(verdict, RetryableResponse)
    assert isinstance(verdict.error, BadAnswer)


def test_lengths_must_agree():
    assert length_of(Headers([("Content-Length", "5"), ("Content-Length", "5")])) == 5
    assert length_of(Headers([("Content-Length", "5, 5")])) == 5
    assert isinstance(length_of(Headers([("Content-Length", "5"), ("Content-Length", "6")])), str)
    assert length_of(Headers()) is None


@pytest.mark.parametrize(
    ("name", "coding"),
    [("Content-Encoding", "gzip"), ("Content-Encoding", "identity, br"), ("Transfer-Encoding", "gzip")],
)
@pytest.mark.parametrize("status", [200, 206])
def test_a_coding_that_nobody_asked_for_is_not_taken(status, name, coding):
    verdict = _judge(status, {**PART, name: coding}, ask=REST, known=SIZED)
    assert isinstance(verdict, RetryableResponse)
    assert isinstance(verdict.error, BadAnswer)


def test_plain_codings_are_taken():
    assert isinstance(_judge(200, {"Content-Encoding": "identity", "Transfer-Encoding": "chunked"}), UsableResponse)


def test_the_rest_is_taken_where_everything_fits():
    for ask, known in ((REST, BARE), (REST, SIZED), (PLAIN, BARE), (PLAIN, SIZED)):
        verdict = _judge(206, PART, ask=ask, known=known)
        assert isinstance(verdict, UsableResponse)
        assert (verdict.offset, verdict.size_bytes, verdict.etag) == (60, 100, '"one"')


@pytest.mark.parametrize(
    "change",
    [
        {"Content-Range": None},
        {"Content-Range": "bytes 59-99/100", "Content-Length": "41"},
        {"Content-Range": "bytes 61-99/100", "Content-Length": "39"},
        {"Content-Range": "bytes 60-98/100", "Content-Length": "39"},
        {"Content-Range": "bytes 60-99/101"},
        {"Content-Range": "bytes 60-100/101", "Content-Length": "41"},
        {"Content-Range": "bytes */100"},
        {"Content-Range": "items 60-99/100"},
        {"Content-Length": "39"},
        {"Content-Length": "x"},
        {"ETag": '"two"'},
        {"ETag": 'W/"one"'},
        {"Content-Type": "multipart/byteranges; boundary=x"},
    ],
    ids=str,
)
def test_a_part_that_does_not_fit_exactly_is_never_added(change):
    verdict = _judge(206, {**PART, **change}, ask=REST, known=BARE)
    assert isinstance(verdict, DownloadRestart)
    assert verdict.why


def test_a_part_without_total_is_taken_where_the_size_is_known():
    assert isinstance(_judge(206, {**PART, "Content-Range": "bytes 60-99/*"}, ask=REST, known=BARE), UsableResponse)
    unknown = changed(BARE, partial_size_bytes=None)
    assert isinstance(_judge(206, {**PART, "Content-Range": "bytes 60-99/*"}, ask=REST, known=unknown), DownloadRestart)


def test_a_part_of_another_date_is_never_added():
    dated = changed(BARE, etag="", last_modified="monday")
    fields = {**PART, "ETag": None}
    ask = RangeRequest(offset=60, if_range="monday")
    assert isinstance(_judge(206, {**fields, "Last-Modified": "monday"}, ask=ask, known=dated), UsableResponse)
    assert isinstance(_judge(206, {**fields, "Last-Modified": "tuesday"}, ask=ask, known=dated), DownloadRestart)


def test_a_part_that_nothing_ties_to_its_version_is_never_added():
    fields = {**PART, "ETag": None}
    assert isinstance(_judge(206, fields, ask=PLAIN, known=BARE), DownloadRestart)
    assert isinstance(_judge(206, fields, ask=REST, known=BARE), DownloadRestart)
    assert isinstance(_judge(206, fields, ask=PLAIN, known=changed(BARE, is_pinned=True)), UsableResponse)


@pytest.mark.parametrize(
    ("before", "now"),
    [('W/"one"', 'W/"two"'), ('W/"one"', None), ("", 'W/"one"'), ("", '"one"'), ('"one"', None)],
)
def test_a_tag_that_changes_comes_or_goes_outweighs_a_date_that_stays(before, now):
    dated = changed(BARE, etag=before, last_modified="monday")
    fields = {**PART, "ETag": now, "Last-Modified": "monday"}
    ask = RangeRequest(offset=60, if_range="monday")
    assert isinstance(_judge(206, fields, ask=ask, known=dated), DownloadRestart)
    is_other = bool(before) and not before.startswith("W/") and bool(now)
    pinned = _judge(206, fields, ask=ask, known=changed(dated, is_pinned=True))
    assert isinstance(pinned, DownloadRestart if is_other else UsableResponse)


def test_a_weak_tag_that_stays_needs_a_date_that_stays():
    weak = changed(BARE, etag='W/"one"', last_modified="monday")
    fields = {**PART, "ETag": 'W/"one"'}
    assert isinstance(_judge(206, {**fields, "Last-Modified": "monday"}, ask=PLAIN, known=weak), UsableResponse)
    assert isinstance(_judge(206, fields, ask=PLAIN, known=weak), DownloadRestart)
    assert isinstance(_judge(206, fields, ask=PLAIN, known=changed(weak, last_modified="")), DownloadRestart)


@pytest.mark.parametrize(
    ("date", "is_exact"),
    [("Wed, 01 Jan 2025 00:01:00 GMT", True), ("Wed, 01 Jan 2025 00:00:59 GMT", False), (None, False), ("x", False)],
)
def test_a_date_stands_for_one_version_once_it_is_a_minute_old(date, is_exact):
    fields = {"Content-Length": "100", "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT", "Date": date}
    assert _judge(200, fields).is_date_exact is is_exact
    part = {**PART, "Content-Range": "bytes 0-99/100", "Content-Length": "100", **fields}
    assert _judge(206, part).is_date_exact is is_exact
    dated = changed(BARE, last_modified="Wed, 01 Jan 2025 00:00:00 GMT")
    assert _judge(206, {**fields, **PART, "Date": date}, ask=REST, known=dated).is_date_exact
    assert not _judge(206, {**fields, **PART, "Date": date}, ask=REST, known=BARE).is_date_exact


def test_a_part_that_nobody_asked_for_is_only_taken_if_it_is_the_whole():
    half = {"Content-Range": "bytes 0-49/100", "Content-Length": "50"}
    verdict = _judge(206, half)
    assert isinstance(verdict, RetryableResponse)
    assert isinstance(verdict.error, BadAnswer)
    whole = _judge(206, {"Content-Range": "bytes 0-99/100", "Content-Length": "100"})
    assert isinstance(whole, UsableResponse)
    assert whole.size_bytes == 100


def test_everything_of_the_same_version_means_that_the_condition_is_disliked():
    fields = {"Content-Length": "100", "ETag": '"one"'}
    assert isinstance(_judge(200, fields, ask=REST, known=BARE), UnconditionalRetry)
    again = _judge(200, fields, ask=PLAIN, known=BARE)
    assert isinstance(again, UsableResponse)
    assert (again.offset, again.why) == (0, "the server does not support ranges")


def test_everything_of_another_version_is_taken_from_the_start():
    verdict = _judge(200, {"Content-Length": "120", "ETag": '"two"'}, ask=REST, known=BARE)
    assert isinstance(verdict, UsableResponse)
    assert (verdict.offset, verdict.size_bytes, verdict.why) == (0, 120, "the file has changed on the server")


def test_a_page_of_no_version_does_not_replace_what_is_there():
    verdict = _judge(200, {"Content-Length": "21"}, ask=REST, known=BARE)
    assert isinstance(verdict, RetryableResponse)
    assert isinstance(verdict.error, BadAnswer)
    assert isinstance(_judge(200, {"Content-Length": "100"}, ask=REST, known=BARE), UsableResponse)


def test_nothing_beyond_the_end_means_that_all_is_there():
    ask = RangeRequest(offset=100)
    assert isinstance(_judge(416, {"Content-Range": "bytes */100"}, ask=ask, known=BARE), DownloadComplete)
    assert isinstance(_judge(416, ask=ask, known=SIZED), DownloadComplete)


@pytest.mark.parametrize("fields", [{"Content-Range": "bytes */100"}, {"Content-Range": "bytes */60"}, {}])
def test_a_refused_range_before_the_end_starts_over(fields):
    assert isinstance(_judge(416, fields, ask=REST, known=BARE), DownloadRestart)
    assert isinstance(_judge(412, fields, ask=REST, known=BARE), DownloadRestart)


@pytest.mark.parametrize("status", [401, 403])
def test_only_the_server_that_was_asked_can_refuse_us(status):
    own = _judge(status)
    assert isinstance(own, FatalResponse)
    assert isinstance(own.error, AuthRefused)
    assert "HF_TOKEN" not in own.error.hint
    assert "secret" not in own.error.message
    stale = _judge(status, is_elsewhere=True)
    assert isinstance(stale, RetryableResponse)
    assert isinstance(stale.error, NetworkFailed)


@pytest.mark.parametrize("status", [404, 410, 451])
def test_what_is_not_there_is_not_asked_for_again(status):
    verdict = _judge(status)
    assert isinstance(verdict, FatalResponse)
    assert isinstance(verdict.error, NotOnServer)


def test_a_dead_link_elsewhere_is_asked_for_anew():
    verdict = _judge(404, is_elsewhere=True)
    assert isinstance(verdict, RetryableResponse)
    assert isinstance(verdict.error, NotOnServer)


def test_too_many_requests_are_waited_out():
    verdict = _judge(429, {"Retry-After": "7"})
    assert isinstance(verdict, RetryableResponse)
    assert isinstance(verdict.error, RateLimited)
    assert verdict.wait_s == 7.0
    assert _judge(429).wait_s == 5.0
    assert _judge(429, {"Retry-After": "soon"}).wait_s == 5.0


@pytest.mark.parametrize("status", [408, 425, 500, 502, 503, 504, 599])
def test_trouble_of_the_server_is_waited_out(status):
    verdict = _judge(status)
    assert isinstance(verdict, RetryableResponse)
    assert isinstance(verdict.error, NetworkFailed)
    assert verdict.wait_s is None
    assert _judge(status, {"Retry-After": "7"}).wait_s == 7.0


@pytest.mark.parametrize("status", [204, 304, 300])
def test_an_answer_that_fits_no_question_is_tried_again(status):
    verdict = _judge(status)
    assert isinstance(verdict, RetryableResponse)
    assert isinstance(verdict.error, BadAnswer)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, BadAnswer), (405, BadAnswer), (416, BadAnswer), (407, NetworkFailed)]
)
def test_a_refusal_is_final(status, kind):
    verdict = _judge(status)
    assert isinstance(verdict, FatalResponse)
    assert isinstance(verdict.error, kind)


def test_a_web_page_in_place_of_a_file_is_refused():
    for kind in ("text/html", "text/html; charset=utf-8", "Application/XHTML+xml"):
        verdict = _judge(
            200, {"Content-Type": kind, "Content-Length": "9"}, known=changed(FIRST, url="https://h/m.gguf")
        )
        assert isinstance(verdict, FatalResponse)
        assert isinstance(verdict.error, BadAnswer)
        assert "a web page, not m.gguf" in verdict.error.message
    assert isinstance(
        _judge(200, {"Content-Type": "text/html", "Content-Length": "9"}, ask=PLAIN, known=BARE), FatalResponse
    )


@pytest.mark.parametrize(
    "known",
    [
        changed(FIRST, url="https://h/a%20page.HTML?x=1"),
        changed(FIRST, url="https://h/page.htm"),
        changed(FIRST, is_pinned=True),
        changed(FIRST, size_bytes=9),
    ],
)
def test_a_page_is_taken_where_one_was_asked_for_or_something_else_decides(known):
    assert isinstance(_judge(200, {"Content-Type": "text/html", "Content-Length": "9"}, known=known), UsableResponse)


def test_a_label_that_the_address_ends_with_is_not_said_twice():
    message = _judge(404, known=changed(FIRST, url="https://h/a/m.gguf", label="m.gguf")).error.message
    assert message == "not on the server (404): https://h/a/m.gguf"
