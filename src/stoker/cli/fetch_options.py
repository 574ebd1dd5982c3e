"""Options that all commands share which fetch something, and how they are read."""

from __future__ import annotations

from typing import Any

from stoker.cli.grammar import Option, duration, whole
from stoker.core.digests import Digest, is_digest
from stoker.transfer.download.types import DownloadTimeouts

DEFAULT_JOBS = 8

SHARED_OPTIONS = (
    Option(
        "--retries",
        value="N",
        read=whole(1),
        help="also give up after N attempts in a row without a new byte, the first included (default: --timeout alone)",
    ),
    Option("--timeout", value="S", read=duration, help="give up after this long without a new byte (default: 30m)"),
    Option("--offline", help="ask no server: only what is on this disk (also HF_HUB_OFFLINE=1, STOKER_OFFLINE=1)"),
    Option("--force", help="fetch again what is there already"),
    Option("--no-progress", help="no progress, only results"),
    Option("--verbose", help="tell every request, redirect and retry, on standard error"),
)

EXIT_CODES = (
    "Exit codes: 10 no space, 11 not allowed, 12 too many requests, 13 wrong bytes, 14 network or no such file, 16 a "
    "lock, a permission or a file in the way, 130 interrupted."
)


def sha256(text: str) -> Digest:
    """Read a digest, in capitals or not."""
    plain = text.lower().removeprefix("sha256:")
    if not is_digest(plain):
        message = f"{text!r} is not a sha256: that is 64 hexadecimal digits"
        raise ValueError(message)
    return Digest(plain)


def patience_of(given: dict[str, Any]) -> DownloadTimeouts:
    """Return how patient the options want a download to be."""
    usual = DownloadTimeouts()
    no_progress_s = usual.no_progress_s if given["timeout"] is None else given["timeout"]
    return DownloadTimeouts(
        attempts=given["retries"],
        no_progress_s=no_progress_s,
        slow_s=min(usual.slow_s, no_progress_s),
        lock_wait_s=min(usual.lock_wait_s, no_progress_s),
    )
