"""Stoker's transfer engine in process: one file by its address, checked against its sha256, durable under its name.

`--way durable` is all of it. `--way checked` stops the clock when every byte is written and its digest known, just
before the file is synced; the rest is done all the same. What to fetch stands in the environment: `FETCH_URL`,
`FETCH_SHA256`, and `FETCH_CERTIFICATE` where the server's certificate is its own. `executed` counts bytes.
"""

from __future__ import annotations

import os
import time

import speak

import stoker.host.http.connections  # noqa: F401 - otherwise imported with the first request, inside the time
from stoker.core.clock import SystemClock
from stoker.core.digests import Digest
from stoker.host.http.client import Urllib3Transport
from stoker.host.http.exchange import HttpSettings
from stoker.host.resources import free_bytes
from stoker.transfer.download.download import fetch_file
from stoker.transfer.download.types import DownloadRequest, DownloadStop, DownloadTimeouts, DownloadTools, TargetFile


def main() -> None:
    asked = speak.read_arguments(ways=("durable", "checked"))
    wanted = DownloadRequest(url=os.environ["FETCH_URL"], sha256=Digest(os.environ["FETCH_SHA256"]))
    transport = Urllib3Transport(HttpSettings(ca_file=os.environ.get("FETCH_CERTIFICATE", "")))
    reached_s: dict[str, float] = {}

    def note(step: str) -> None:
        reached_s.setdefault(step, time.perf_counter())

    tools = DownloadTools(
        transport=transport, clock=SystemClock(), free_bytes=free_bytes, jitter=lambda: 0.5, on_step=note
    )
    started, used = time.perf_counter(), time.process_time()
    fetched = fetch_file(
        wanted,
        TargetFile(folder=str(asked.home), name="fetched"),
        tools=tools,
        patience=DownloadTimeouts(),
        stop=DownloadStop(),
    )
    ended, used = time.perf_counter(), time.process_time() - used
    transport.close()
    if asked.way == "checked":
        ended = reached_s["sync"]
    os.unlink(fetched.path)
    speak.tell(asked, seconds=ended - started, total=None, executed=fetched.bytes_from_network, cpu_seconds=used)


main()
