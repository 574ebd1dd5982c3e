"""The mailbox page of one rank: 4096 bytes at fixed places, little-endian, written by the rank and read by its owner.

A page is published payload first, then its checksum, and the state as the last four bytes, so that a reader who sees
the new state sees all that belongs to it. The checksum covers the state, too: whoever reads between two writes, or
after a rank was killed between them, is told that the page is torn.

The reader trusts nothing: a length or count beyond what fits is cut, a number that is no state or phase is torn, and
text is decoded whatever its bytes are.
"""

from __future__ import annotations

import struct
import zlib

from stoker.gang.states import Phase, State
from stoker.model.frozen import frozen

PAGE_BYTES = 4096
MOST_BUFFERS = 128
TEXT_BYTES = 1023
TYPE_BYTES = 63
HANDLE_BYTES = 64

_MAGIC = 0x47504753
_VERSION = 1
_HEAD = struct.Struct("<IIII")  # magic, version, state, checksum
_STATE_AT = 8
_PHASES = len(Phase)
# sequence, phase, rank, nranks, device, pid, start ticks, device context, window base, requested, actual,
# handle kind, handle length, buffers, failed at, errno, cut, traceback length, type length, text length
_BODY = struct.Struct("<QIIIiQQQQQQIIIQiIIII")
_STAMPS = struct.Struct(f"<{_PHASES}Q")
_PAIR = struct.Struct("<QQ")
_BODY_AT = _HEAD.size
_STAMPS_AT = 160
_HANDLE_AT = 256
_TYPE_AT = 320
_TEXT_AT = 384
_BUFFERS_AT = 1536


@frozen
class Slot:
    """Where a buffer lies in its rank's window."""

    offset: int
    nbytes: int


@frozen
class Page:
    """What a rank says."""

    state: State = State.IDLE
    phase: Phase = Phase.FORKED
    sequence: int = 0
    rank: int = 0
    nranks: int = 0
    device_id: int = 0
    pid: int = 0
    start_ticks: int = 0
    stamps_ns: tuple[int, ...] = (0,) * _PHASES
    """When each phase began, by the monotonic clock that all processes of a computer share; zero: not yet."""
    device_ctx: int = 0
    window_base: int = 0
    requested_bytes: int = 0
    actual_bytes: int = 0
    handle_kind: int = 0
    handle: bytes = b""
    slots: tuple[Slot, ...] = ()
    failed_ns: int = 0
    error_type: str = ""
    error_text: str = ""
    is_cut: bool = False
    """Whether more was to be said than there is room for."""
    errno: int = 0
    traceback_bytes: int = 0


@frozen
class Torn:
    """Bytes that are no page, or not yet one."""

    why: str


def encode(page: Page) -> tuple[bytes, bytes]:
    """Give the bytes of a page without its state, and those of the state, which belong at `state_at()`.

    Text and type are cut on a character's border; what does not fit the table of buffers raises `ValueError`.
    """
    if len(page.slots) > MOST_BUFFERS or len(page.handle) > HANDLE_BYTES:
        message = f"no room for {len(page.slots)} buffers and a handle of {len(page.handle)} bytes"
        raise ValueError(message)
    kind, kind_cut = cut_text(page.error_type, TYPE_BYTES)
    text, text_cut = cut_text(page.error_text, TEXT_BYTES)
    made = bytearray(PAGE_BYTES)
    _BODY.pack_into(
        made, _BODY_AT, page.sequence, page.phase, page.rank, page.nranks, page.device_id, page.pid, page.start_ticks,
        page.device_ctx, page.window_base, page.requested_bytes, page.actual_bytes, page.handle_kind, len(page.handle),
        len(page.slots), page.failed_ns, page.errno, page.is_cut or kind_cut or text_cut, page.traceback_bytes,
        len(kind), len(text),
    )  # fmt: skip
    _STAMPS.pack_into(made, _STAMPS_AT, *page.stamps_ns)
    made[_HANDLE_AT : _HANDLE_AT + len(page.handle)] = page.handle
    made[_TYPE_AT : _TYPE_AT + len(kind)] = kind
    made[_TEXT_AT : _TEXT_AT + len(text)] = text
    for index, slot in enumerate(page.slots):
        _PAIR.pack_into(made, _BUFFERS_AT + index * _PAIR.size, slot.offset, slot.nbytes)
    _HEAD.pack_into(made, 0, _MAGIC, _VERSION, 0, _checksum(page.state, made))
    return bytes(made), page.state.to_bytes(4, "little")


def state_at() -> int:
    """Give the place of the state, which is written last."""
    return _STATE_AT


def whole(page: Page) -> bytes:
    """Give a page as it looks once it is published."""
    made, state = encode(page)
    return made[:_STATE_AT] + state + made[_STATE_AT + 4 :]


def decode(data: bytes) -> Page | Torn:
    """Read a page, or say why it is none. Never raises, whatever the bytes are."""
    if len(data) != PAGE_BYTES:
        return Torn(why=f"{len(data)} bytes where a page has {PAGE_BYTES}")
    magic, version, state, checksum = _HEAD.unpack_from(data)
    if magic == 0 and not any(data):
        return Page()
    if (magic, version) != (_MAGIC, _VERSION):
        return Torn(why=f"not a page of ours: {magic:#x}, version {version}")
    if state >= len(State) or checksum != _checksum(state, data):
        return Torn(why="its checksum is another")
    body = _BODY.unpack_from(data, _BODY_AT)
    if body[1] >= _PHASES:
        return Torn(why=f"phase {body[1]} does not exist")
    return _page_of(State(state), body, data)


def _page_of(state: State, body: tuple[int, ...], data: bytes) -> Page:
    sequence, phase, rank, nranks, device, pid, ticks, ctx, base, requested, actual, kind, *rest = body
    handle_length, buffers, failed_ns, errno, cut, traceback_bytes, type_length, text_length = rest
    handle_end = _HANDLE_AT + min(handle_length, HANDLE_BYTES)
    pairs = _PAIR.iter_unpack(data[_BUFFERS_AT : _BUFFERS_AT + min(buffers, MOST_BUFFERS) * _PAIR.size])
    return Page(
        state=state,
        phase=Phase(phase),
        sequence=sequence,
        rank=rank,
        nranks=nranks,
        device_id=device,
        pid=pid,
        start_ticks=ticks,
        stamps_ns=_STAMPS.unpack_from(data, _STAMPS_AT),
        device_ctx=ctx,
        window_base=base,
        requested_bytes=requested,
        actual_bytes=actual,
        handle_kind=kind,
        handle=data[_HANDLE_AT:handle_end],
        slots=tuple(Slot(offset=offset, nbytes=nbytes) for offset, nbytes in pairs),
        failed_ns=failed_ns,
        error_type=_text(data, _TYPE_AT, type_length, TYPE_BYTES),
        error_text=_text(data, _TEXT_AT, text_length, TEXT_BYTES),
        is_cut=bool(cut),
        errno=errno,
        traceback_bytes=traceback_bytes,
    )


def cut_text(text: str, most_bytes: int) -> tuple[bytes, bool]:
    """Give text as UTF-8 of at most that many bytes, no character in halves, and whether something was cut off."""
    data = text.encode(errors="backslashreplace")
    if len(data) <= most_bytes:
        return data, False
    # A character's later bytes begin with the bits 10.
    end = most_bytes
    while end and data[end] & 0xC0 == 0x80:
        end -= 1
    return data[:end], True


def _text(data: bytes, start: int, length: int, most: int) -> str:
    return data[start : start + min(length, most)].decode(errors="replace")


def _checksum(state: int, data: bytes | bytearray) -> int:
    return zlib.crc32(memoryview(data)[_BODY_AT:], state)
