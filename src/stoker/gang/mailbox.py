"""The mailbox page of one rank: 4096 bytes at fixed places, little-endian, written by the rank and read by its owner.

A page is published payload first, then its checksum, and the state as the last four bytes, so that a reader who sees
the new state sees all that belongs to it. The checksum covers the state, too: a page that is read between two
writes, or after a rank was killed between them, reads as torn.

The reader trusts nothing: a length or count beyond what fits is cut, a number that is no state or phase is torn, and
text is decoded whatever its bytes are.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import threading
import time
import traceback
import zlib
from collections.abc import Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any

from stoker.core.clock import Closable
from stoker.core.frozen import changed, frozen
from stoker.host.identity import read_row

# The states and phases of a rank, as numbers that stand in its mailbox page.


class RankState(IntEnum):
    """What a rank says of itself. A page full of zeros is idle."""

    IDLE = 0
    STARTED = 1
    SUCCESS = 2
    ERROR = 3
    CLOSING = 4
    CLOSED = 5


class Phase(IntEnum):
    """How far a rank has come, in the order in which it gets there."""

    FORKED = 0
    DEVICE = 1
    STORE = 2
    COMM = 3
    WINDOW = 4
    STAGING = 5
    READY = 6
    RUN = 7


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
class RankPage:
    """What a rank says."""

    state: RankState = RankState.IDLE
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
    """True if the text did not fit and was cut."""
    errno: int = 0
    traceback_bytes: int = 0


@frozen
class TornPage:
    """Bytes that are no page, or not yet one."""

    why: str


def encode(page: RankPage) -> tuple[bytes, bytes]:
    """Return the bytes of a page without its state, and those of the state, which belong at `state_at()`.

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
    """Return the place of the state, which is written last."""
    return _STATE_AT


def whole(page: RankPage) -> bytes:
    """Return a page as it looks once it is published."""
    made, state = encode(page)
    return made[:_STATE_AT] + state + made[_STATE_AT + 4 :]


def decode(data: bytes) -> RankPage | TornPage:
    """Read a page, or say why it is none. Never raises, whatever the bytes are."""
    if len(data) != PAGE_BYTES:
        return TornPage(why=f"{len(data)} bytes where a page has {PAGE_BYTES}")
    magic, version, state, checksum = _HEAD.unpack_from(data)
    if magic == 0 and not any(data):
        return RankPage()
    if (magic, version) != (_MAGIC, _VERSION):
        return TornPage(why=f"not a page of ours: {magic:#x}, version {version}")
    if state >= len(RankState) or checksum != _checksum(state, data):
        return TornPage(why="its checksum is another")
    body = _BODY.unpack_from(data, _BODY_AT)
    if body[1] >= _PHASES:
        return TornPage(why=f"phase {body[1]} does not exist")
    return _page_of(RankState(state), body, data)


def _page_of(state: RankState, body: tuple[int, ...], data: bytes) -> RankPage:
    sequence, phase, rank, nranks, device, pid, ticks, ctx, base, requested, actual, kind, *rest = body
    handle_length, buffers, failed_ns, errno, cut, traceback_bytes, type_length, text_length = rest
    handle_end = _HANDLE_AT + min(handle_length, HANDLE_BYTES)
    pairs = _PAIR.iter_unpack(data[_BUFFERS_AT : _BUFFERS_AT + min(buffers, MOST_BUFFERS) * _PAIR.size])
    return RankPage(
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
    """Return text as UTF-8 of at most that many bytes, no character in halves, and whether something was cut off."""
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


# One call moves at most 2 GiB.
_PIECE_BYTES = 1 << 30


def unnamed_memory(name: str, size_bytes: int, *, may_grow: bool = False) -> int:
    """Return a descriptor of so much zeroed memory without a name (`name` is for `/proc` alone). Raises `OSError`.

    On Linux it is sealed: it can neither shrink under a reader nor grow. Elsewhere (untested) it is an open file that
    has no name.
    """
    if sys.platform != "linux":
        with tempfile.TemporaryFile() as file:
            os.ftruncate(file.fileno(), size_bytes)
            return os.dup(file.fileno())
    import fcntl  # noqa: PLC0415 - its seals are Linux's alone

    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size_bytes)
        if not may_grow:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def write_at(fd: int, data: bytes | memoryview, at: int) -> None:
    """Write all of it to this place."""
    view = memoryview(data).cast("B")
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done : done + _PIECE_BYTES], at + done)


def read_at(fd: int, nbytes: int, at: int) -> bytearray:
    """Read so much from this place. Raises `EOFError` if the memory ends before."""
    got = bytearray(nbytes)
    view = memoryview(got)
    done = 0
    while done < nbytes:
        count = os.preadv(fd, [view[done : done + _PIECE_BYTES]], at + done)
        if not count:
            message = f"the memory ends after {at + done} bytes"
            raise EOFError(message)
        done += count
    return got


BOX_BYTES = 64 * 1024
TRACEBACK_AT = PAGE_BYTES
TRACEBACK_BYTES = 48 * 1024
CRASH_AT = TRACEBACK_AT + TRACEBACK_BYTES
CRASH_BYTES = BOX_BYTES - TRACEBACK_BYTES
MAILBOX_BYTES = PAGE_BYTES + BOX_BYTES

# One of them is expected to be whole: a rank writes two pieces in a row.
_LOOKS = 3


class MailboxPages(Closable):
    """The mailboxes of a gang, seen by its owner: for each rank its page and a black box of 64 KiB, in unnamed memory.

    Each rank gets the descriptor of its own mailbox alone, so none can spoil another's. Nothing can be left behind,
    whichever process is killed when.
    """

    def __init__(self, fds: Sequence[int]) -> None:
        self._fds = list(fds)

    @classmethod
    def make(cls, count: int) -> MailboxPages:
        fds: list[int] = []
        try:
            for rank in range(count):
                fds.append(unnamed_memory(f"stoker-rank-{rank}", MAILBOX_BYTES))  # noqa: PERF401 - closed if one fails
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        return cls(fds)

    def __len__(self) -> int:
        return len(self._fds)

    def fd(self, rank: int) -> int:
        """Return the descriptor that this rank is handed."""
        return self._fds[rank]

    def read(self, rank: int) -> RankPage | TornPage:
        """Read a rank's page, once more if it is being written."""
        page = decode(os.pread(self._fds[rank], PAGE_BYTES, 0))
        for _ in range(_LOOKS - 1):
            if isinstance(page, RankPage):
                break
            page = decode(os.pread(self._fds[rank], PAGE_BYTES, 0))
        return page

    def traceback(self, rank: int, page: RankPage) -> str:
        """Return what a rank's interpreter said of its error."""
        size = min(page.traceback_bytes, TRACEBACK_BYTES)
        return os.pread(self._fds[rank], size, TRACEBACK_AT).decode(errors="replace")

    def crash(self, rank: int) -> str:
        """Return what the C side wrote when a rank crashed, or was asked where it is."""
        return os.pread(self._fds[rank], CRASH_BYTES, CRASH_AT).rstrip(b"\0").decode(errors="replace")

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


STORE_PLACE = 255
"""The kind of handle that is no window's but says where the rank has made the store of several hosts."""


@frozen
class RankWindowInfo:
    """What a rank shows of its window once it has one."""

    device_ctx: int = 0
    base: int = 0
    requested_bytes: int = 0
    actual_bytes: int = 0
    handle_kind: int = 0
    handle: bytes = b""
    slots: tuple[Slot, ...] = ()


class Publisher:
    """Writes one rank's page: where it is, that it is ready, or what went wrong.

    Each call is one page: payload, then state, then a byte into the pipe on which the owner waits. Only the rank
    writes, one thread of it at a time.
    """

    def __init__(self, fd: int, wake_fd: int, *, rank: int, nranks: int, device_id: int) -> None:
        """`fd` is of the mailbox, `wake_fd` the pipe's writing end; both stay the caller's."""
        self._fd = fd
        self._wake_fd = wake_fd
        self._turn = threading.RLock()
        pid = os.getpid()
        row = read_row(pid)
        self._page = RankPage(
            rank=rank, nranks=nranks, device_id=device_id, pid=pid, start_ticks=row.start_ticks if row else 0
        )

    @property
    def page(self) -> RankPage:
        """What was published last."""
        return self._page

    def begin(self, phase: int) -> None:
        """Publish that a phase begins, now."""
        stamps = list(self._page.stamps_ns)
        stamps[phase] = time.monotonic_ns()
        state = RankState.SUCCESS if phase >= Phase.READY else RankState.STARTED
        self._publish(state=state, phase=Phase(phase), stamps_ns=tuple(stamps))

    def show_place(self, place: str) -> None:
        """Publish the address of the store that this rank made."""
        self._publish(handle_kind=STORE_PLACE, handle=place.encode())

    def ready(self, shown: RankWindowInfo) -> None:
        """Publish that this rank is ready, with its window."""
        stamps = list(self._page.stamps_ns)
        stamps[Phase.READY] = time.monotonic_ns()
        self._publish(
            state=RankState.SUCCESS,
            phase=Phase.READY,
            stamps_ns=tuple(stamps),
            device_ctx=shown.device_ctx,
            window_base=shown.base,
            requested_bytes=shown.requested_bytes,
            actual_bytes=shown.actual_bytes,
            handle_kind=shown.handle_kind,
            handle=shown.handle,
            slots=shown.slots,
        )

    def fail(self, error: BaseException, *, hidden_frames: int = 0) -> None:
        """Publish an error of the current phase, without the first `hidden_frames` of its traceback."""
        failed_ns = time.monotonic_ns()
        trace = error.__traceback__
        for _ in range(hidden_frames):
            trace = trace.tb_next if trace is not None and trace.tb_next is not None else trace
        said = "".join(traceback.format_exception(type(error), error, trace))
        text = said_of(error)
        self.tell(type(error).__name__, text, failed_ns=failed_ns, traceback_text=said, errno=_errno_of(error))

    def tell(self, kind: str, text: str, *, failed_ns: int, traceback_text: str = "", errno: int = 0) -> None:
        """Publish a failure of this kind at that time."""
        data, is_cut = _keep_end(traceback_text)
        os.pwrite(self._fd, data, TRACEBACK_AT)
        self._publish(
            state=RankState.ERROR,
            failed_ns=failed_ns,
            error_type=kind,
            error_text=text,
            errno=errno,
            is_cut=is_cut,
            traceback_bytes=len(data),
        )

    def closing(self) -> None:
        self._publish(state=RankState.CLOSING)

    def closed(self) -> None:
        self._publish(state=RankState.CLOSED)

    def _publish(self, **fields: Any) -> None:
        with self._turn:
            self._page = changed(self._page, sequence=self._page.sequence + 1, **fields)
            payload, state = encode(self._page)
            at = state_at()
            os.pwrite(self._fd, payload[at + len(state) :], at + len(state))
            os.pwrite(self._fd, payload[:at], 0)
            os.pwrite(self._fd, state, at)
        # A full pipe has woken the owner already; a closed one has none.
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._wake_fd, b"\1")


def said_of(error: BaseException) -> str:
    """Return an error's own text, whatever its class makes of it."""
    try:
        return str(error)
    except BaseException as worse:  # noqa: BLE001 - the work's own class may do anything
        return f"(its text can't be had: {type(worse).__name__})"


def _errno_of(error: BaseException) -> int:
    number = getattr(error, "errno", None)
    return number if isinstance(number, int) and -(2**31) <= number < 2**31 else 0


def _keep_end(text: str) -> tuple[bytes, bool]:
    """Return what fits the box. A traceback's end says most, so the middle goes."""
    data, is_cut = cut_text(text, TRACEBACK_BYTES)
    if not is_cut:
        return data, False
    head, _ = cut_text(text, TRACEBACK_BYTES // 3)
    middle = b"\n  ... cut ...\n"
    rest = TRACEBACK_BYTES - len(head) - len(middle)
    tail = text.encode(errors="backslashreplace")[-rest:]
    return head + middle + tail.lstrip(bytes(range(0x80, 0xC0))), True
