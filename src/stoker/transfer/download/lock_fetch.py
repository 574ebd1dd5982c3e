"""A file of a lock list, from the first of its addresses that has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stoker.core.errors import AuthRefused, BadAnswer, Damaged, NetworkFailed, NotOnServer, RateLimited, StokerError
from stoker.core.frozen import changed
from stoker.core.retry import NoRetry
from stoker.host.http.addresses import shown
from stoker.transfer.download.download import fetch_file, kept_bytes_of
from stoker.transfer.download.download_events import reason_of, retry_of
from stoker.transfer.download.lock_list import LockedFile
from stoker.transfer.download.response_rules import FailedAttempts, decide_again, given_up, is_outage
from stoker.transfer.download.types import (
    DownloadRequest,
    DownloadStop,
    DownloadTimeouts,
    DownloadTools,
    FetchedFile,
    TargetFile,
)

# What one server did wrong, another may do right; a full disk is full for all of them.
_ANOTHER_MAY_HELP = (AuthRefused, BadAnswer, Damaged, NetworkFailed, NotOnServer, RateLimited)


def fetch_listed(  # noqa: PLR0913 - what, where to, with what, how long, until when, and the wishes of a user
    file: LockedFile,
    landing: TargetFile,
    *,
    tools: DownloadTools,
    patience: DownloadTimeouts,
    stop: DownloadStop,
    headers_for: Callable[[str], Mapping[str, str]],
    force: bool = False,
    offline: bool = False,
) -> FetchedFile:
    """Have a listed file under its final name: its addresses are tried in their order.

    Each of several addresses gets a few attempts, so that one that is away does not keep the others waiting; while any
    of them is away, all are tried again, as patience allows. `headers_for` gives what an address is sent, credentials
    among it. Raises the error of the last address, with what became of the others in its data.
    """
    # The disk is the same for all of them.
    urls = file.urls[:1] if offline else file.urls
    each = patience if len(urls) == 1 else changed(patience, attempts=patience.attempts or patience.unusable_attempts)
    tries, kept_bytes, progress_s = FailedAttempts(), 0, tools.clock.monotonic_s()

    def fetch(url: str) -> FetchedFile:
        headers = headers_for(url)
        wanted = DownloadRequest(
            url=url, label=file.id, size_bytes=file.size_bytes, sha256=file.sha256, headers=headers
        )
        return fetch_file(wanted, landing, tools=tools, patience=each, stop=stop, force=force, offline=offline)

    while True:
        came = _first_that_has_it(file, urls, fetch, tools)
        if isinstance(came, FetchedFile):
            return came
        away = next((error for error in came if is_outage(error)), None)
        if away is None or len(urls) == 1 or patience.attempts is not None:
            raise _all_failed(file, came)
        now_s, kept_now = tools.clock.monotonic_s(), max(kept_bytes_of(error) for error in came)
        tries = tries.after(away, has_progress=kept_now > kept_bytes)
        if kept_now > kept_bytes:
            kept_bytes, progress_s = kept_now, now_s
        decision = decide_again(patience, tries, silent_s=now_s - progress_s, wait_s=None, jitter=tools.jitter())
        if isinstance(decision, NoRetry):
            raise given_up(_all_failed(file, came), decision)
        msg = f"none of {len(urls)} addresses has it now: {away.message}"
        reason, attempt = reason_of(away), max(1, tries.idle)
        tools.say(retry_of(file.id, wait_s=decision.delay_s, msg=msg, reason=reason, attempt=attempt))
        stop.sleep(decision.delay_s, tools.clock)


def _first_that_has_it(
    file: LockedFile, urls: Sequence[str], fetch: Callable[[str], FetchedFile], tools: DownloadTools
) -> FetchedFile | list[StokerError]:
    """Try every address once; return the file, or what each of them did wrong."""
    failed: list[StokerError] = []
    for number, url in enumerate(urls):
        try:
            return fetch(url)
        except _ANOTHER_MAY_HELP as error:
            failed.append(error)
            if number + 1 < len(urls):
                msg = f"{error}; trying the next address"
                tools.say(retry_of(file.id, wait_s=0.0, msg=msg, reason="mirror", attempt=number + 1))
    return failed


def _all_failed(file: LockedFile, failed: list[StokerError]) -> StokerError:
    last = failed[-1]
    if len(failed) == 1:
        return last
    tried = [{"url": shown(url), "message": error.message} for url, error in zip(file.urls, failed, strict=False)]
    message = f"none of {len(tried)} addresses has {file.id}: {last}"
    return type(last)(message, hint=last.hint, **{**last.data, "tried": tried})
