"""Keep streams of a coordinator open and read them, as cheaply as that can be done, until stdin is closed.

python screens_listen.py URL TOKEN-FILE COUNT
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

HEAD = "GET /v1/stream HTTP/1.1\r\nHost: {host}\r\nX-Operator-Token: {token}\r\n\r\n"
_PIECE_BYTES = 1 << 20


async def main(url: str, token: str, count: int) -> None:
    host = url.partition("://")[2]
    name, _, port = host.partition(":")
    lines = [await asyncio.open_connection(name, int(port), limit=_PIECE_BYTES) for _ in range(count)]
    for reader, writer in lines:
        writer.write(HEAD.format(host=host, token=token).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.splitlines()[0]:
            raise RuntimeError(head.decode())
    print("open", flush=True)
    reading = [asyncio.ensure_future(read(reader)) for reader, _ in lines]
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for one in reading:
        one.cancel()


async def read(reader: asyncio.StreamReader) -> None:
    while await reader.read(_PIECE_BYTES):
        pass


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]).read_text().strip(), int(sys.argv[3])))
