"""What a power cut may have left at the end of a file that was not synced: zeroes that nobody sent.

Some file systems make a file longer before its bytes are on the disk. So of a file that was last written in an earlier
boot, zeroes at its end are not believed. If they were true after all, its worker has them and sends them again.
"""

from __future__ import annotations

import os

from stoker.host.durable import translated

_BLOCK_BYTES = 64 * 1024


def drop_zeroes(path: str) -> int:
    """Cut the zeroes off a file's end, and give the size that it has then."""
    with translated(path):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            size_bytes = os.fstat(descriptor).st_size
            end = _end_of_content(descriptor, size_bytes)
            if end < size_bytes:
                os.ftruncate(descriptor, end)
        finally:
            os.close(descriptor)
    return end


def _end_of_content(descriptor: int, size_bytes: int) -> int:
    end = size_bytes
    while end:
        start = max(0, end - _BLOCK_BYTES)
        content = os.pread(descriptor, end - start, start).rstrip(b"\0")
        if content:
            return start + len(content)
        end = start
    return 0
