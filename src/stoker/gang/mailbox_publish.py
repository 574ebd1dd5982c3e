"""The rank's side of its mailbox: it says where it is, that it is ready, or what went wrong.

Each call is one page: payload, then state, then a byte into the pipe on which the owner waits. Only the rank writes,
one thread of it at a time.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from contextlib import suppress
from typing import Any

from stoker.core.frozen import changed, frozen
from stoker.gang.mailbox import (
    TRACEBACK_AT,
    TRACEBACK_BYTES,
    Phase,
    RankPage,
    RankState,
    Slot,
    cut_text,
    encode,
    state_at,
)
from stoker.host.process_table import read_row

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
    """Writes one rank's page."""

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

    def begin(self, phase: Phase) -> None:
        """Say that a phase begins, now."""
        stamps = list(self._page.stamps_ns)
        stamps[phase] = time.monotonic_ns()
        state = RankState.SUCCESS if phase >= Phase.READY else RankState.STARTED
        self._publish(state=state, phase=phase, stamps_ns=tuple(stamps))

    def show_place(self, place: str) -> None:
        """Say where the store is that this rank has made."""
        self._publish(handle_kind=STORE_PLACE, handle=place.encode())

    def ready(self, shown: RankWindowInfo) -> None:
        """Say that everything is up, and where it is."""
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
        """Say what went wrong, in the phase that is under way; `hidden_frames` of ours are left out at its top."""
        failed_ns = time.monotonic_ns()
        trace = error.__traceback__
        for _ in range(hidden_frames):
            trace = trace.tb_next if trace is not None and trace.tb_next is not None else trace
        said = "".join(traceback.format_exception(type(error), error, trace))
        text = said_of(error)
        self.tell(type(error).__name__, text, failed_ns=failed_ns, traceback_text=said, errno=_errno_of(error))

    def tell(self, kind: str, text: str, *, failed_ns: int, traceback_text: str = "", errno: int = 0) -> None:
        """Say that something of this kind went wrong, then."""
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
