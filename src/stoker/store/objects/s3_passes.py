"""An S3 bucket and its keys of access, and passes: presigned URLs for one object and one method.

A pass needs no key on the machine that uses it. Headers that are signed into it must be sent as they are: the length,
the SHA-256 and `If-None-Match` of a put, so the store refuses other bytes and does not replace an object. AWS Signature
Version 4 in the query; `obstore.sign` can't sign headers.
"""

from __future__ import annotations

import configparser
import hmac
import os
import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from urllib.parse import quote, urlsplit

from stoker.core.digests import Digest
from stoker.core.errors import BadInput
from stoker.core.frozen import fresh, frozen

PASS_LIFE_S = 600
"""A transfer begins within this time; one that runs may take longer."""

_ALGORITHM = "AWS4-HMAC-SHA256"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SCHEME = "s3://"
_DEFAULT_REGION = "us-east-1"
_HEADER_CHECKSUM = "x-amz-checksum-sha256"


@frozen
class Pass:
    """The right to put or get one object, without a key."""

    digest: Digest
    size_bytes: int
    url: str
    headers: Mapping[str, str] = fresh(factory=dict)
    """To be sent as they are."""


@frozen
class S3Keys:
    """A key of access. Never printed or logged."""

    id: str
    secret: str
    session: str = ""

    def __repr__(self) -> str:
        return f"S3Keys(id={self.id!r})"


@frozen
class S3Site:
    """One bucket, or a prefix of it, at one endpoint."""

    bucket: str
    prefix: str
    """Without slashes at its ends; may be empty."""
    endpoint: str
    """Scheme and host, without a slash at the end."""
    region: str
    keys: S3Keys

    @property
    def url(self) -> str:
        """As the user names it."""
        return f"{_SCHEME}{self.bucket}/{self.prefix}".rstrip("/")

    def key(self, name: str) -> str:
        """Return the whole key of an object."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def pass_to_put(self, name: str, digest: Digest, size_bytes: int, *, now_s: float) -> Pass:
        """Return a pass to put bytes that have this digest and size, if there is no such object."""
        headers = {
            "content-length": str(size_bytes),
            "if-none-match": "*",
            _HEADER_CHECKSUM: b64encode(bytes.fromhex(digest)).decode(),
        }
        url = self.sign("PUT", name, headers, now_s=now_s)
        # The client counts the bytes that it sends and makes the header of their length itself.
        del headers["content-length"]
        return Pass(digest=digest, size_bytes=size_bytes, url=url, headers=headers)

    def pass_to_get(self, name: str, digest: Digest, size_bytes: int, *, now_s: float) -> Pass:
        """Return a pass to get an object, or ranges of it."""
        return Pass(digest=digest, size_bytes=size_bytes, url=self.sign("GET", name, {}, now_s=now_s))

    def sign(self, method: str, name: str, headers: Mapping[str, str], *, now_s: float) -> str:
        """Return a presigned URL of an object."""
        url = f"{self.endpoint}/{self.bucket}/{self.key(name)}"
        return sign(method, url, headers, region=self.region, keys=self.keys, now_s=now_s, life_s=PASS_LIFE_S)


def sign(  # noqa: PLR0913 - all of it is signed
    method: str, url: str, headers: Mapping[str, str], *, region: str, keys: S3Keys, now_s: float, life_s: int
) -> str:
    """Return a URL with the signature of a request, whose headers are named in lower case. `url` has no query."""
    split = urlsplit(url)
    signed = {**headers, "host": split.netloc}
    names = ";".join(sorted(signed))
    now = datetime.fromtimestamp(now_s, UTC)
    scope = f"{now:%Y%m%d}/{region}/s3/aws4_request"
    query = {
        "X-Amz-Algorithm": _ALGORITHM,
        "X-Amz-Credential": f"{keys.id}/{scope}",
        "X-Amz-Date": f"{now:%Y%m%dT%H%M%SZ}",
        "X-Amz-Expires": str(life_s),
        "X-Amz-SignedHeaders": names,
    }
    if keys.session:
        query["X-Amz-Security-Token"] = keys.session
    canonical_query = "&".join(f"{name}={quote(value, safe='-_.~')}" for name, value in sorted(query.items()))
    path = quote(split.path, safe="/-_.~")
    canonical = "\n".join(
        (
            method,
            path,
            canonical_query,
            *(f"{name}:{value.strip()}" for name, value in sorted(signed.items())),
            "",
            names,
            "UNSIGNED-PAYLOAD",
        )
    )
    to_sign = "\n".join((_ALGORITHM, query["X-Amz-Date"], scope, sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{keys.secret}".encode()
    for text in scope.split("/"):
        key = hmac.digest(key, text.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    return f"{split.scheme}://{split.netloc}{path}?{canonical_query}&X-Amz-Signature={signature}"


def read_site(url: str, environment: Mapping[str, str]) -> S3Site:
    """Read `s3://BUCKET/PREFIX`, and endpoint, region and key from the standard AWS variables or files.

    Raises `BadInput` if the address is invalid or there is no key.
    """
    if not url.startswith(_SCHEME):
        raise BadInput(f"not an object store: {url!r}", hint="write s3://BUCKET/PREFIX")
    bucket, _, prefix = url.removeprefix(_SCHEME).partition("/")
    prefix = prefix.strip("/")
    if not _BUCKET.fullmatch(bucket):
        raise BadInput(f"not the name of a bucket: {bucket!r}", hint="3 to 63 lower-case letters, digits, '-' and '.'")
    if any(part in {"", ".", ".."} for part in prefix.split("/") if prefix) or not prefix.isprintable():
        raise BadInput(f"not a prefix of a bucket: {prefix!r}", hint="write s3://BUCKET/PREFIX")
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or _DEFAULT_REGION
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    endpoint = (endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/")
    if urlsplit(endpoint).scheme not in {"http", "https"} or not urlsplit(endpoint).hostname:
        raise BadInput(f"AWS_ENDPOINT_URL is not an address: {endpoint!r}", hint="such as https://s3.example.org")
    return S3Site(bucket=bucket, prefix=prefix, endpoint=endpoint, region=region, keys=_read_keys(environment))


def _read_keys(environment: Mapping[str, str]) -> S3Keys:
    key, secret = environment.get("AWS_ACCESS_KEY_ID", ""), environment.get("AWS_SECRET_ACCESS_KEY", "")
    if key and secret:
        return S3Keys(id=key, secret=secret, session=environment.get("AWS_SESSION_TOKEN", ""))
    path = environment.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.join(
        environment.get("HOME", ""), ".aws", "credentials"
    )
    profile = environment.get("AWS_PROFILE") or "default"
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
        found = dict(parser[profile]) if profile in parser else {}
    except (OSError, UnicodeError, configparser.Error) as error:
        raise BadInput(f"{path} can't be read: {type(error).__name__}", hint="see `aws configure`") from None
    if not (found.get("aws_access_key_id") and found.get("aws_secret_access_key")):
        raise BadInput(
            "no key for the object store",
            hint=f"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or put profile {profile} into {path}",
        )
    return S3Keys(
        id=found["aws_access_key_id"],
        secret=found["aws_secret_access_key"],
        session=found.get("aws_session_token", ""),
    )
