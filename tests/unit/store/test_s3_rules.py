"""Pure rules of objects in S3: signatures, addresses and keys, and what each error of a store means."""

from __future__ import annotations

import pytest

from stoker.core.errors import AuthRefused, BadInput, HashMismatch, NetworkFailed, NotOnServer, RateLimited
from stoker.store.objects.s3_bucket import S3Fault, S3Meaning, judge_fault, read_fault
from stoker.store.objects.s3_passes import S3Keys, read_site, sign

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
}


def test_a_signature_is_that_of_the_example_in_the_documentation_of_s3():
    keys = S3Keys(id=KEYS["AWS_ACCESS_KEY_ID"], secret=KEYS["AWS_SECRET_ACCESS_KEY"])
    url = sign(
        "GET",
        "https://examplebucket.s3.amazonaws.com/test.txt",
        {},
        region="us-east-1",
        keys=keys,
        now_s=1369353600,
        life_s=86400,
    )
    assert url == (
        "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256"
        "&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
        "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
        "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    )


def test_a_pass_to_put_signs_length_checksum_and_condition():
    site = read_site("s3://bucket/a/b", KEYS)
    digest = "ab" * 32
    made = site.pass_to_put(f"objects/{digest}", digest, 7, now_s=0.0)  # type: ignore[arg-type]
    assert made.url.startswith(f"https://s3.us-east-1.amazonaws.com/bucket/a/b/objects/{digest}?")
    assert "X-Amz-SignedHeaders=content-length%3Bhost%3Bif-none-match%3Bx-amz-checksum-sha256" in made.url
    assert dict(made.headers) == {
        "if-none-match": "*",
        "x-amz-checksum-sha256": "q6urq6urq6urq6urq6urq6urq6urq6urq6urq6urq6s=",
    }
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in made.url
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in repr(site)


@pytest.mark.parametrize(
    "url", ["http://bucket", "s3://", "s3://A", "s3://bucket/a//b", "s3://bucket/../x", "s3://b/\n"]
)
def test_what_is_not_a_bucket_is_refused(url):
    with pytest.raises(BadInput) as refused:
        read_site(url, KEYS)
    assert refused.value.hint


def test_keys_come_from_variables_or_the_file_of_aws(tmp_path):
    file = tmp_path / "credentials"
    file.write_text("[lab]\naws_access_key_id = K\naws_secret_access_key = S\naws_session_token = T\n")
    variables = {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_PROFILE": "lab", "AWS_ENDPOINT_URL": "http://x:9000/"}
    site = read_site("s3://bucket", variables)
    assert (site.keys.id, site.keys.secret, site.keys.session) == ("K", "S", "T")
    assert site.endpoint == "http://x:9000"
    with pytest.raises(BadInput, match="no key") as refused:
        read_site("s3://bucket", {**variables, "AWS_PROFILE": "other"})
    assert str(file) in refused.value.hint


@pytest.mark.parametrize(
    ("status", "code", "meaning", "error"),
    [
        (None, "", S3Meaning.RETRY, NetworkFailed),
        (503, "SlowDown", S3Meaning.RETRY, RateLimited),
        (503, "", S3Meaning.RETRY, RateLimited),
        (412, "PreconditionFailed", S3Meaning.EXISTS, None),
        (412, "", S3Meaning.EXISTS, None),
        (404, "NoSuchKey", S3Meaning.MISSING, NotOnServer),
        (404, "NoSuchBucket", S3Meaning.REFUSE, NotOnServer),
        (403, "AccessDenied", S3Meaning.REFUSE, AuthRefused),
        (403, "SignatureDoesNotMatch", S3Meaning.REFUSE, AuthRefused),
        (403, "RequestTimeTooSkewed", S3Meaning.REFUSE, AuthRefused),
        (400, "BadDigest", S3Meaning.REFUSE, HashMismatch),
        (409, "ConditionalRequestConflict", S3Meaning.RETRY, None),
        (500, "InternalError", S3Meaning.RETRY, None),
        (302, "", S3Meaning.REFUSE, None),
    ],
)
def test_each_error_of_a_store_has_one_meaning(status, code, meaning, error):
    verdict = judge_fault(S3Fault(status=status, code=code), "s3://bucket")
    assert verdict.meaning is meaning
    assert error is None or isinstance(verdict.error, error)
    assert meaning in {S3Meaning.EXISTS, S3Meaning.MISSING} or verdict.error.hint
    assert verdict.error.message.startswith("s3://bucket: ")


def test_skewed_clocks_are_told_apart_from_a_wrong_key():
    skewed = judge_fault(S3Fault(status=403, code="RequestTimeTooSkewed"), "x").error
    assert "clock" in skewed.message
    assert "time" in skewed.hint


def test_an_error_is_read_from_what_obstore_says():
    text = "Server returned non-2xx status code: 403 Forbidden: <Error><Code>AccessDenied</Code></Error>"
    assert read_fault(text) == S3Fault(status=403, code="AccessDenied")
    assert read_fault("error sending request") == S3Fault(status=None)
