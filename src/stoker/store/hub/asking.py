"""Small questions to a hub: sent, repeated as patience allows, answers bounded.

Redirects are followed without credentials where they lead to another server (`host.http.redirects`). The head of a
file's answer is never looked for elsewhere: what counts is what the hub itself says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing

from stoker.host.http.addresses import shown
from stoker.host.http.exchange import Headers, Reply, Request
from stoker.host.http.redirects import at_another_origin, follow
from stoker.model.errors import BadAnswer, NetworkFailed
from stoker.model.frozen import frozen
from stoker.model.retry import GiveUp
from stoker.store.download.patience import Patience
from stoker.store.download.refusing import refusal
from stoker.store.download.retrying import RATE_LIMIT_PAUSE_S, Tries, decide_again, given_up, retry_after_s
from stoker.store.download.stop import Stop
from stoker.store.download.telling import retry_of
from stoker.store.download.tools import Tools
from stoker.store.hub.bodies import pieces_of
from stoker.store.hub.listing import LONGEST_ANSWER_BYTES
from stoker.store.hub.refusing import explained, is_passing

_NO_SUCH_ROUTE = frozenset({404, 405, 501})
_PIECE_BYTES = 1 << 16


@frozen
class Answer:
    """The head of an answer, and its body where it was asked for."""

    status: int
    headers: Headers
    body: bytes = b""


class Asker:
    """Asks one hub, with one set of credentials. Safe to use from several threads."""

    def __init__(
        self,
        headers: Mapping[str, str],
        *,
        tools: Tools,
        patience: Patience,
        stop: Stop,
        has_token: bool,
        is_hub: bool = False,
    ) -> None:
        """`is_hub`: it is the hub that was set, and not any other address."""
        self._headers = headers
        self._is_hub = is_hub
        self._tools = tools
        self._patience = patience
        self._stop = stop
        self._has_token = has_token

    def get(self, url: str, what: str) -> Answer | None:
        """Ask a question and read the whole answer; nothing if this server has no such question at all.

        `what` is what it is about, for messages. Raises what `refusing.explained` gives, `NetworkFailed`, `BadAnswer`.
        """
        request = Request(url=url, headers={**self._headers, "Accept": "application/json"})
        answer = self._ask(what, lambda: self._read(request))
        # A hub says why in a header of its own; any other server just has no such page.
        if answer.status in _NO_SUCH_ROUTE and answer.headers.get("X-Error-Code") is None:
            return None
        return self._accepted(answer, url, what)

    def head(self, url: str, what: str, *, accepts: frozenset[int] = frozenset(), first_byte: bool = False) -> Answer:
        """Ask for the head of a file's answer only. `first_byte`: by a GET of one byte, where HEAD is refused.

        Statuses in `accepts` are given back, too, instead of raised.
        """
        ranged = {"Range": "bytes=0-0"} if first_byte else {}
        request = Request(url=url, method="GET" if first_byte else "HEAD", headers={**self._headers, **ranged})
        answer = self._ask(what, lambda: self._glance(request))
        return answer if answer.status in accepts else self._accepted(answer, url, what)

    def _accepted(self, answer: Answer, url: str, what: str) -> Answer:
        if answer.status < 400:
            return answer
        raise explained(refusal(what, answer.status, answer.headers), url, what, has_token=self._has_token)

    def _ask(self, what: str, ask: Callable[[], Answer]) -> Answer:
        clock = self._tools.clock
        began_s = clock.monotonic_s()
        tries = Tries()
        while True:
            self._stop.check()
            got = self._try(ask)
            if isinstance(got, Answer) and not is_passing(got.status):
                return got
            error = refusal(what, got.status, got.headers) if isinstance(got, Answer) else got
            tries = tries.after(error, has_progress=False)
            decided = decide_again(
                self._patience,
                tries,
                silent_s=clock.monotonic_s() - began_s,
                wait_s=self._asked_wait_s(got),
                jitter=self._tools.jitter(),
            )
            if isinstance(decided, GiveUp):
                if isinstance(got, Answer):
                    return got
                # Whoever set this hub can set another one.
                got.data["is_hub"] = self._is_hub
                raise given_up(got, decided)
            self._say_retry(what, decided.delay_s, got, tries.idle)
            self._stop.sleep(decided.delay_s, clock)

    def _try(self, ask: Callable[[], Answer]) -> Answer | NetworkFailed:
        try:
            return ask()
        except NetworkFailed as error:
            self._stop.check()
            if error.data.get("is_lasting"):
                raise
            return error

    def _asked_wait_s(self, got: Answer | NetworkFailed) -> float | None:
        if not isinstance(got, Answer):
            return None
        longest_s = self._patience.longest_retry_after_s
        wait_s = retry_after_s(got.headers, now_s=self._tools.clock.wall_s(), longest_s=longest_s)
        return RATE_LIMIT_PAUSE_S if wait_s is None and got.status == 429 else wait_s

    def _read(self, request: Request) -> Answer:
        transport = self._tools.transport
        with self._stop.cutting(transport.abort), closing(follow(transport, request).reply) as reply:
            return Answer(status=reply.status, headers=reply.headers, body=self._bounded(reply))

    def _bounded(self, reply: Reply) -> bytes:
        pieces, size_bytes = [], 0
        for piece in pieces_of(reply, _PIECE_BYTES, clock=self._tools.clock, patience=self._patience):
            size_bytes += len(piece)
            if size_bytes > LONGEST_ANSWER_BYTES:
                raise BadAnswer(f"the answer has no end: {shown(reply.url)}", hint="is this a hub? check the address")
            pieces.append(piece)
        return b"".join(pieces)

    def _glance(self, request: Request) -> Answer:
        transport = self._tools.transport
        with self._stop.cutting(transport.abort):
            followed = follow(transport, request, stops_at=at_another_origin)
            with closing(followed.reply) as reply:
                return Answer(status=reply.status, headers=reply.headers)

    def _say_retry(self, what: str, wait_s: float, got: Answer | NetworkFailed, attempt: int) -> None:
        why = f"the server answers {got.status}" if isinstance(got, Answer) else got.message
        reason = str(got.status) if isinstance(got, Answer) else str(got.data.get("reason", ""))
        self._tools.say(retry_of(what, wait_s=wait_s, msg=f"{what}: {why}", reason=reason, attempt=attempt))
