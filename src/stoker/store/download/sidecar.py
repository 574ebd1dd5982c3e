"""The record beside a partial file: which version its bytes belong to, and how many of them survive a power cut.

It is durable before the first byte of the body is written, so a partial without one, or with one that can't be read, is
of no known version and nothing is added to it. Its watermark never claims a byte that was not synced before.
"""

from __future__ import annotations

from stoker.host.identity import ProcessIdentity
from stoker.model import json_text
from stoker.model.digests import digest_bytes
from stoker.model.frozen import frozen

FORMAT = 1
LONGEST_BYTES = 64 * 1024


@frozen
class Sidecar:
    """What is known about the version that a partial file holds a piece of. Unknown texts are empty."""

    url: str
    """Without its query: signatures are secrets, and change."""
    commit: str = ""
    size_bytes: int | None = None
    sha256: str = ""
    git_sha1: str = ""
    etag: str = ""
    """As the server said it: a weak one can't vouch for bytes, but tells that they changed."""
    last_modified: str = ""
    """Only one that was a while past when it was first seen: within its second a file may change again."""
    durable_bytes: int = 0
    """The watermark: so many bytes from the start were synced."""
    boot_id: str = ""
    """Of the machine that wrote it: what was not synced is still there while it is up."""
    writer: ProcessIdentity | None = None
    """Who is writing; nobody after an orderly end."""

    @property
    def has_validator(self) -> bool:
        return bool(self.condition)

    @property
    def condition(self) -> str:
        """What the rest may be asked for under: a strong tag, or else the date."""
        return strong_etag(self.etag) or self.last_modified


def dump_sidecar(sidecar: Sidecar) -> bytes:
    """Write a sidecar as one line of JSON with a check of its own bytes."""
    body = {
        "format": FORMAT,
        "url": sidecar.url,
        "commit": sidecar.commit,
        "size_bytes": sidecar.size_bytes,
        "sha256": sidecar.sha256,
        "git_sha1": sidecar.git_sha1,
        "etag": sidecar.etag,
        "last_modified": sidecar.last_modified,
        "durable_bytes": sidecar.durable_bytes,
        "boot_id": sidecar.boot_id,
        "writer": None if sidecar.writer is None else sidecar.writer.to_dict(),
    }
    return json_text.dumps({**body, "check": _check(body)}).encode() + b"\n"


def load_sidecar(data: bytes) -> Sidecar | str:
    """Read a sidecar; a text says why it can't be believed."""
    try:
        body = json_text.loads(data)
        check = body.pop("check")
        if body["format"] != FORMAT:
            return f"its record has format {body['format']!r}, not {FORMAT}"
        if check != _check(body):
            return "its record is damaged"
        del body["format"]
        writer = body.pop("writer")
        made = Sidecar(**body, writer=None if writer is None else ProcessIdentity.from_dict(writer))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return "its record can't be read"
    return made if _is_sound(made) else "its record says what can't be"


def strong_etag(text: str | None) -> str:
    """Give a tag if it stands for exact bytes; a weak one, or none, is empty."""
    return text if text is not None and text.startswith('"') and is_plain(text) else ""


def is_plain(text: str) -> bool:
    """Whether a validator can be sent back as it came."""
    return text.isascii() and text.isprintable()


def _check(body: dict[str, object]) -> str:
    return digest_bytes(json_text.dumps(body).encode())


def _is_sound(sidecar: Sidecar) -> bool:
    texts = (sidecar.url, sidecar.commit, sidecar.sha256, sidecar.git_sha1, sidecar.etag, sidecar.last_modified)
    numbers = (sidecar.durable_bytes, 0 if sidecar.size_bytes is None else sidecar.size_bytes)
    return (
        all(isinstance(text, str) for text in (*texts, sidecar.boot_id))
        and all(type(number) is int and number >= 0 for number in numbers)
        and is_plain(sidecar.etag)
        and is_plain(sidecar.last_modified)
    )
