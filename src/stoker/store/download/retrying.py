"""Whether to try again, and how long to wait before: decided purely, with the reason.

An outage (connection refused, reset or silent, name servers that fail, 5xx, 429) is waited out until no byte came for
`Patience.no_progress_s`, or for `Patience.attempts` attempts where a number was given. Every new byte starts both
counts again. Answers that arrive and can't be used are no outage, nor is a host name that does not exist and never
led to a server in this process: they are asked for a few times only.

Pauses have jitter, so that a thousand machines that were cut off together do not come back together. What a server
asks for (`Retry-After`) is obeyed within bounds.
"""

from __future__ import annotations

from stoker.host.http.exchange import Headers
from stoker.model.errors import NetworkFailed, RateLimited, StokerError
from stoker.model.frozen import frozen
from stoker.model.retry import Again, GiveUp, pause_s
from stoker.model.units import format_duration
from stoker.store.download.heads import http_date_s
from stoker.store.download.patience import Patience
from stoker.store.download.refusing import is_busy

FIRST_PAUSE_S = 1.0
"""The longest pause after the first failure; it doubles with each one."""
RATE_LIMIT_PAUSE_S = 5.0
"""After a 429 that does not say how long."""
_SHORTEST_RETRY_AFTER_S = 1.0
_NEVER_SERVED = frozenset({501, 505})
"""What a server has not implemented it won't have later either."""


@frozen
class Tries:
    """Failed attempts in a row, the latest included."""

    idle: int = 0
    """Those without a new byte; 0: the latest one brought some."""
    unusable: int = 0
    """Those that ended with an answer that can't be used or an unknown name, and not by an outage."""

    def after(self, error: StokerError, *, has_progress: bool) -> Tries:
        """Return the count after one more failed attempt."""
        if has_progress:
            return Tries()
        return Tries(idle=self.idle + 1, unusable=0 if is_outage(error) else self.unusable + 1)


def is_outage(error: StokerError) -> bool:
    """Return True if the server, or the way to it, is away or busy for now: the same request may succeed later."""
    status = error.data.get("status")
    is_away = not isinstance(status, int) or (is_busy(status) and status not in _NEVER_SERVED)
    is_named = not error.data.get("is_unknown_name")
    return isinstance(error, NetworkFailed | RateLimited) and is_away and is_named


def decide_again(
    patience: Patience, tries: Tries, *, silent_s: float, wait_s: float | None, jitter: float
) -> Again | GiveUp:
    """Decide what follows a failed attempt.

    No byte came for `silent_s`; the server asked for a pause of `wait_s`, or for none.
    """
    if patience.attempts is not None and tries.idle >= patience.attempts:
        return GiveUp(why=_attempts(tries.idle))
    if patience.attempts is None and tries.unusable >= patience.unusable_attempts:
        return GiveUp(why=_attempts(tries.unusable))
    left_s = patience.no_progress_s - silent_s
    # Our own pause is cut short for one last attempt at the limit; a server's is not worth beginning then.
    own_s = pause_s(max(tries.idle - 1, 0), jitter, first_s=FIRST_PAUSE_S, longest_s=patience.longest_pause_s)
    delay_s = min(own_s, left_s) if wait_s is None else wait_s
    if left_s <= 0 or delay_s > left_s:
        asked = "" if wait_s is None else f", and the server asks for a pause of {format_duration(wait_s)}"
        return GiveUp(why=f"no new byte for {format_duration(silent_s)}{asked}", is_timeout=True)
    return Again(delay_s=delay_s, why=_attempts(tries.idle))


def given_up(error: StokerError, decision: GiveUp) -> StokerError:
    """Return the error to raise after giving up: the last one, with why no other attempt follows."""
    error.data["timed_out"] = decision.is_timeout
    if isinstance(error, NetworkFailed):
        hint = error.hint or "check this computer's network and the server"
        return NetworkFailed(f"{error.message} ({decision.why})", hint=hint, **error.data)
    return error


def _attempts(count: int) -> str:
    return f"{count} attempt{'' if count == 1 else 's'} without a new byte"


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
