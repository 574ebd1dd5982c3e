"""A file of a lock list, from the first of its addresses that has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stoker.host.http.addresses import shown
from stoker.model.errors import AuthRefused, BadAnswer, Damaged, NetworkFailed, NotOnServer, RateLimited, StokerError
from stoker.store.download.engine import fetch_file
from stoker.store.download.lock_list import LockedFile
from stoker.store.download.patience import Patience
from stoker.store.download.stop import Stop
from stoker.store.download.telling import retry_of
from stoker.store.download.tools import Tools
from stoker.store.download.wanted import Fetched, Landing, Wanted

# What one server did wrong, another may do right; a full disk is full for all of them.
_ANOTHER_MAY_HELP = (AuthRefused, BadAnswer, Damaged, NetworkFailed, NotOnServer, RateLimited)


def fetch_listed(  # noqa: PLR0913 - what, where to, with what, how long, until when, and the wishes of a user
    file: LockedFile,
    landing: Landing,
    *,
    tools: Tools,
    patience: Patience,
    stop: Stop,
    headers_for: Callable[[str], Mapping[str, str]],
    force: bool = False,
    offline: bool = False,
) -> Fetched:
    """Have a listed file under its final name: its addresses are tried in their order.

    `headers_for` gives what an address is sent, credentials among it. Raises the error of the last address, with what
    became of the others in its data.
    """
    failed: list[StokerError] = []
    # The disk is the same for all of them.
    for number, url in enumerate(file.urls[:1] if offline else file.urls):
        wanted = Wanted(
            url=url, label=file.id, size_bytes=file.size_bytes, sha256=file.sha256, headers=headers_for(url)
        )
        try:
            return fetch_file(wanted, landing, tools=tools, patience=patience, stop=stop, force=force, offline=offline)
        except _ANOTHER_MAY_HELP as error:
            failed.append(error)
            if number + 1 < len(file.urls) and not offline:
                msg = f"{error}; trying the next address"
                tools.say(retry_of(file.id, wait_s=0.0, msg=msg, reason="mirror", attempt=number + 1))
    raise _all_failed(file, failed)


def _all_failed(file: LockedFile, failed: list[StokerError]) -> StokerError:
    last = failed[-1]
    if len(failed) == 1:
        return last
    tried = [{"url": shown(url), "message": error.message} for url, error in zip(file.urls, failed, strict=False)]
    return type(last)(f"none of {len(tried)} addresses has {file.id}: {last}", hint=last.hint, tried=tried)
