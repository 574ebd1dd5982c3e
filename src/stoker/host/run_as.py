"""Work on files with another user's rights, for a block and in this thread alone.

Whatever a link leads to then, that user could have had without us. The kernel keeps these ids for each thread; taking
another one drops root's rights over files with it. Groups are kept for the whole process, so the first block drops
root's own: root loses nothing by it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from stoker.core.errors import InternalError

if TYPE_CHECKING:
    import ctypes

_NOBODY = 0xFFFFFFFF
"""Refused by the kernel, which answers with who it is now."""


@contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """Act as a user on files. Only for root on Linux; blocks do not nest."""
    if os.getgroups():
        os.setgroups([])
    try:
        _set(_libc().setfsgid, gid)
        _set(_libc().setfsuid, uid)
        yield
    finally:
        _set(_libc().setfsuid, os.geteuid())
        _set(_libc().setfsgid, os.getegid())


@contextmanager
def acting_as_owner(folder: str) -> Iterator[None]:
    """Act as the owner of a folder, where root works in one that was given to somebody; else as ourselves."""
    if sys.platform != "linux" or os.geteuid() != 0:
        yield
        return
    try:
        info = os.lstat(folder)
    except OSError:
        # Whatever is wrong shows in the block.
        yield
        return
    if info.st_uid == 0:
        yield
        return
    with acting_as(info.st_uid, info.st_gid):
        yield


def _set(call: ctypes._NamedFuncPointer, wanted: int) -> None:
    from ctypes import c_uint  # noqa: PLC0415 - milliseconds that a cached run never needs

    call(c_uint(wanted))
    if call(c_uint(_NOBODY)) != wanted:
        raise InternalError(f"the kernel does not let us act as {wanted}")


@cache
def _libc() -> ctypes.CDLL:
    from ctypes import CDLL  # noqa: PLC0415 - milliseconds that a cached run never needs

    return CDLL(None)
