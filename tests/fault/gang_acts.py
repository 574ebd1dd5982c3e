"""What ranks do to their gang in the tests of faults: at the beginning of a phase, in a call, and to their mailbox."""

from __future__ import annotations

import os
import random
import struct
import threading
import zlib
from typing import Any

from stoker.gang import this_rank
from stoker.gang.mailbox import PAGE_BYTES, Phase, RankPage, RankState, Slot, whole
from tests.unit.gang.gang_functions import fault, hang

ACT = "STOKER_TEST_ACT"
"""`rank|phase|act`, and perhaps `|seed`."""
IN_PHASE = "tests.fault.gang_acts:in_phase"
# Where the numbers lie that a page cuts to what fits, in the layout that `page` promises.
_CHECKSUM_AT, _BODY_AT = 12, 16
_PHASE_AT, _BUFFERS_AT, _TEXT_LENGTH_AT = 24, 96, 124
_FUTURE_NS = 2**64 - 1


def in_phase(phase: str, rank: int) -> None:
    """For `on_phase`: do what the variable says, if it says so of this rank and phase."""
    victim, where, act, *seed = os.environ[ACT].split("|")
    if (where, int(victim)) == (phase, rank):
        _do(act, int(seed[0]) if seed else 0)


def in_call(victim: int, act: str, seed: int = 0) -> None:
    """Do it on one rank; the others wait for it."""
    from torch import distributed

    if this_rank().rank == victim:
        _do(act, seed)
    distributed.barrier()


def add(number: float) -> float:
    """Return the sum over all ranks."""
    import torch
    from torch import distributed

    total = torch.tensor([float(number)])
    distributed.all_reduce(total)
    return total.item()


def print_and_log(text: str) -> int:
    """Take the locks that a forked copy of a busy process would find taken."""
    import logging

    logging.getLogger("rank").warning(text)
    print(text, flush=True)
    return this_rank().rank


def _do(act: str, seed: int) -> None:
    if act in _FORGERIES:
        _overwrite(_FORGERIES[act](seed))
        hang()
    elif act == "scribble and go on":
        _overwrite(random.Random(seed).randbytes(PAGE_BYTES))
    elif act == "scribble and die":
        _overwrite(random.Random(seed).randbytes(PAGE_BYTES))
        fault("kill")
    elif act == "scribble for ever":
        threading.Thread(target=_scribble_for_ever, daemon=True).start()
        hang()
    else:
        fault(act)


def _mailbox() -> int:
    """Return the descriptor of our own mailbox; no other rank's can be found here."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:stoker-rank-"):
                return int(name)
        except FileNotFoundError:
            continue
    raise LookupError("no mailbox")


def _overwrite(data: bytes) -> None:
    os.pwrite(_mailbox(), data, 0)


def _scribble_for_ever() -> None:
    fd, rng = _mailbox(), random.Random(0)
    while True:
        os.pwrite(fd, rng.randbytes(PAGE_BYTES), 0)


def _page(**fields: Any) -> RankPage:
    said: dict[str, Any] = {
        "state": RankState.SUCCESS,
        "phase": Phase.READY,
        "rank": 1,
        "nranks": 2,
        "pid": os.getpid(),
    }
    return RankPage(**said | fields)


def _sealed(page: bytes, *, at: int = 0, number: int | None = None) -> bytes:
    """Put a number into a page, and give it the checksum that makes its reader believe it."""
    made = bytearray(page)
    if number is not None:
        struct.pack_into("<I", made, at, number)
    state = int.from_bytes(made[8:12], "little")
    struct.pack_into("<I", made, _CHECKSUM_AT, zlib.crc32(memoryview(made)[_BODY_AT:], state))
    return bytes(made)


def _a_billion_buffers(_seed: int) -> bytes:
    return _sealed(whole(_page(slots=(Slot(offset=0, nbytes=8),))), at=_BUFFERS_AT, number=10**9)


def _failed_in_the_future(_seed: int) -> bytes:
    return whole(
        _page(state=RankState.ERROR, phase=Phase.STAGING, failed_ns=_FUTURE_NS, error_type="E", error_text="late")
    )


def _began_in_the_future(_seed: int) -> bytes:
    stamps = (1,) * (len(Phase) - 3) + (_FUTURE_NS,) * 3
    return whole(_page(state=RankState.STARTED, phase=Phase.STAGING, stamps_ns=stamps))


def _a_huge_text(_seed: int) -> bytes:
    page = whole(_page(state=RankState.ERROR, phase=Phase.STAGING, error_type="E", error_text="t" * 2000))
    return _sealed(page, at=_TEXT_LENGTH_AT, number=2**32 - 1)


def _random_numbers(seed: int) -> bytes:
    """Return a page that is in order by its checksum, with a state that exists, and nonsense in all else."""
    rng = random.Random(seed)
    made = bytearray(whole(_page(state=RankState(rng.randrange(len(RankState))))))
    made[_BODY_AT:] = rng.randbytes(PAGE_BYTES - _BODY_AT)
    struct.pack_into("<I", made, _PHASE_AT, rng.randrange(len(Phase)))
    return _sealed(bytes(made))


_FORGERIES = {
    "scribble": lambda seed: random.Random(seed).randbytes(PAGE_BYTES),
    "a billion buffers": _a_billion_buffers,
    "failed in the future": _failed_in_the_future,
    "began in the future": _began_in_the_future,
    "a huge text": _a_huge_text,
    "random numbers": _random_numbers,
}
