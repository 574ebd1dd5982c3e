"""The bytes of one record and the name of its file.

A record is a line with a format number and a check of what follows, then JSON. The name says whose it is: should the
bytes be damaged, it is still known which process to ask about. That of a place in line also says its number, so that
who is first need not read the others.
"""

from __future__ import annotations

import re
from binascii import crc32

from stoker.hardware.ledger.entries import Entry, Ticket
from stoker.model import json_text
from stoker.model.frozen import frozen

LAST_NUMBER = 10**18 - 1
"""The highest that a name can say; who comes after somebody with it shares it."""
_MARK = b"stoker-ledger 1 "
_NAME = re.compile(r"(?:([0-9]{1,18})\.)?([1-9][0-9]{0,9})-([0-9]{1,20})-([0-9a-f]{16})")


@frozen
class Name:
    """Whose a record is."""

    pid: int
    start_ticks: int
    id: str
    number: int | None = None
    """In line; `None` for a reservation."""

    def __str__(self) -> str:
        number = "" if self.number is None else f"{self.number}."
        return f"{number}{self.pid}-{self.start_ticks}-{self.id}"


def name_of(record: Entry | Ticket) -> Name:
    """Give the name of a record."""
    number = record.number if isinstance(record, Ticket) else None
    return Name(pid=record.owner.pid, start_ticks=record.owner.start_ticks, id=record.id, number=number)


def read_name(text: str) -> Name | None:
    """Read a name; `None` if it is none of ours."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    number = None if match[1] is None else int(match[1])
    return Name(pid=int(match[2]), start_ticks=int(match[3]), id=match[4], number=number)


def pack(body: dict[str, object]) -> bytes:
    """Give the bytes of a record."""
    text = json_text.dumps(body).encode()
    return b"%s%08x\n%s" % (_MARK, crc32(text), text)


def unpack(data: bytes) -> object:
    """Read the bytes of a record. Raises `ValueError` on anything that `pack` did not write."""
    head, _, text = data.partition(b"\n")
    if not head.startswith(_MARK) or head != b"%s%08x" % (_MARK, crc32(text)):
        message = "damaged"
        raise ValueError(message)
    return json_text.loads(text)
