"""Whether to try again, and how long to wait before: decided purely, with the reason.

Only attempts that brought nothing new count against the budget; a download that gains ground may be cut as often as
the network likes. Pauses have full jitter, so that a thousand machines that were cut off together do not come back
together. What a server asks for (`Retry-After`) is obeyed within bounds.
"""

from __future__ import annotations

from stoker.host.http.exchange import Headers
from stoker.model.retry import Again, GiveUp
from stoker.model.units import format_duration
from stoker.store.download.heads import http_date_s
from stoker.store.download.patience import Patience

FIRST_PAUSE_S = 1.0
"""The longest pause after the first failure; it doubles with each one."""
RATE_LIMIT_PAUSE_S = 5.0
"""After a 429 that does not say how long."""
_SHORTEST_RETRY_AFTER_S = 1.0


def decide_again(
    patience: Patience, *, idle_attempts: int, silent_s: float, wait_s: float | None, jitter: float
) -> Again | GiveUp:
    """Decide what follows a failed attempt.

    `idle_attempts` in a row brought nothing new, this one included (0: it brought something); no byte came for
    `silent_s`; the server asked for `wait_s`, or for nothing in particular.
    """
    if idle_attempts >= patience.attempts:
        return GiveUp(why=f"attempt {idle_attempts} of {patience.attempts} without progress")
    longest_s = min(patience.longest_pause_s, FIRST_PAUSE_S * 2.0 ** min(max(idle_attempts - 1, 0), 64))
    pause_s = jitter * longest_s if wait_s is None else wait_s
    if silent_s + pause_s > patience.no_progress_s:
        limit = format_duration(patience.no_progress_s)
        return GiveUp(
            why=f"no byte for {format_duration(silent_s)}, a pause of {format_duration(pause_s)}: over {limit}"
        )
    return Again(delay_s=pause_s, why=f"attempt {idle_attempts} of {patience.attempts} without progress")


def retry_after_s(headers: Headers, *, now_s: float, longest_s: float) -> float | None:
    """Give how long a server asks to wait, between one second and `longest_s`; `None` if it doesn't say, or not sanely.

    A date is compared with the server's own `Date`: its clock and ours may be hours apart.
    """
    text = (headers.get("Retry-After") or "").strip()
    if text.isascii() and text.isdigit():
        asked_s = float(text[:9])
    else:
        until_s, there_s = http_date_s(text), http_date_s(headers.get("Date") or "")
        if until_s is None:
            return None
        asked_s = until_s - (now_s if there_s is None else there_s)
    return min(max(asked_s, _SHORTEST_RETRY_AFTER_S), longest_s)
