"""A server of one file in a process of its own, which a test can kill and start again; its words are port and size.

The file comes slowly, so that a test can stop the server in the middle of it. Its port is printed.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator

from tests.servers.faulty import Answer, Asked, FaultyServer, Version

_PIECE_BYTES = 1 << 18
_PAUSE_S = 0.05


def content(size_bytes: int) -> bytes:
    """Return what a server of so many bytes serves."""
    return random.Random(size_bytes).randbytes(size_bytes)


def slowly(asked: Asked, version: Version) -> Answer:
    """Answer well, piece by piece."""
    answer = version.answer(asked)
    body = b"".join(piece for piece in answer.body if isinstance(piece, bytes))

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(body), _PIECE_BYTES):
            yield body[start : start + _PIECE_BYTES]
            time.sleep(_PAUSE_S)

    answer.body = pieces()
    return answer


if __name__ == "__main__":
    port, size_bytes = int(sys.argv[1]), int(sys.argv[2])
    server = FaultyServer(Version(data=content(size_bytes)), slowly, port=port)
    print(server.port, flush=True)
    threading.Event().wait()
