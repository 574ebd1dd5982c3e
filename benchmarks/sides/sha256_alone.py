"""The quickest that anybody could check so many bytes: one sha256 over memory, in updates of a MiB."""

from __future__ import annotations

import hashlib
import os
import time

import speak

_UPDATE_BYTES = 2**20


def main() -> None:
    asked = speak.read_arguments()
    block = os.urandom(_UPDATE_BYTES)
    hashed = hashlib.sha256()
    started = time.perf_counter()
    for _ in range(asked.count // _UPDATE_BYTES):
        hashed.update(block)
    speak.tell(asked, seconds=time.perf_counter() - started, total=None, executed=asked.count)


main()
