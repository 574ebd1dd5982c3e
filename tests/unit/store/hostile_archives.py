"""Archives made by hand, header by header: whatever a stranger could send."""

from __future__ import annotations

import io
import os
from pathlib import Path

import zstandard

from stoker.core.digests import Digest, Tree
from stoker.host.durable import stamp_of
from stoker.store.archives.pack import NOT_HASHED, Bundle, PackSource, pack
from stoker.store.trees import Hasher, walk_tree

END = bytes(1024)


def header(
    name: str | bytes,
    *,
    kind: bytes = b"0",
    size: int | bytes = 0,
    link: str | bytes = "",
    mode: int = 0o644,
    magic: bytes = b"ustar\x0000",
    prefix: bytes = b"",
) -> bytes:
    """Return one header with a right checksum, whatever else is wrong with it."""
    raw = name.encode() if isinstance(name, str) else name
    link_raw = link.encode() if isinstance(link, str) else link
    if isinstance(size, bytes):
        size_field = size
    else:
        size_field = b"%011o\0" % size if size < 8 << 30 else b"\x80" + size.to_bytes(11, "big")
    before = b"".join((raw.ljust(100, b"\0"), b"%07o\0" % mode, b"0000000\0" * 2, size_field, b"00000000000\0"))
    after = b"".join((kind, link_raw.ljust(100, b"\0"), magic, bytes(80), prefix.ljust(155, b"\0"), bytes(12)))
    total = sum(before) + 8 * 32 + sum(after)
    made = b"".join((before, b"%06o\0 " % total, after))
    assert len(made) == 512, len(made)
    return made


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def file(name: str | bytes, data: bytes = b"x", **fields: object) -> bytes:
    return header(name, size=len(data), **fields) + padded(data)  # type: ignore[arg-type]


def folder(name: str) -> bytes:
    return header(name, kind=b"5", mode=0o755)


def symlink(name: str, to: str) -> bytes:
    return header(name, kind=b"2", link=to)


def hardlink(name: str, to: str) -> bytes:
    return header(name, kind=b"1", link=to)


def pax_record(key: str, value: str | bytes) -> bytes:
    raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    rest = b" %b=%b\n" % (key.encode(), raw)
    length = len(rest)
    while len(b"%d" % length) + len(rest) != length:
        length = len(b"%d" % length) + len(rest)
    return b"%d%b" % (length, rest)


def pax(records: dict[str, str] | bytes, *, kind: bytes = b"x") -> bytes:
    body = records if isinstance(records, bytes) else b"".join(pax_record(*record) for record in records.items())
    return header("PaxHeader", kind=kind, size=len(body)) + padded(body)


def gnu_long(text: bytes, *, kind: bytes = b"L") -> bytes:
    return header("././@LongLink", kind=kind, size=len(text)) + padded(text)


def tar(*members: bytes, end: bytes = END) -> bytes:
    return b"".join((*members, end))


def squeezed(data: bytes, **settings: object) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_checksum=True, **settings).compress(data)  # type: ignore[arg-type]


def folder_sources(folder_path: str, *, hasher: Hasher | None = None) -> list[PackSource]:
    """Return the entries of a folder to be packed; without a hasher, files are hashed when they are."""
    found = walk_tree(folder_path, hasher=hasher or _not_hashed)
    return [PackSource(entry=walked.entry, path=walked.path, stamp=stamp_of(walked.info)) for walked in found]


def _not_hashed(path: str) -> tuple[Digest, int]:
    return NOT_HASHED, os.lstat(path).st_size


def packed(folder_path: Path | str, *, workers: int = 0) -> tuple[Bundle, bytes]:
    sink = io.BytesIO()
    bundle = pack(folder_sources(str(folder_path)), sink, workers=workers)
    return bundle, sink.getvalue()


def paths_of(tree: Tree) -> list[str]:
    return [entry.path for entry in tree.entries]
