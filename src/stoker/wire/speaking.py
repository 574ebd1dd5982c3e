"""One question to a coordinator and its answer: headers, limits, what breaks on the way, and when to ask again.

A question is asked again only where twice does what once does, and only for as long as `Patience` says. What the
coordinator refuses comes back as the error it raised; whoever can't be reached is `NoCoordinator`; an answer that no
coordinator gives is `BadAnswer`. Nothing is followed: a redirect is no answer of ours.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import closing
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel

from stoker.host.http.addresses import is_this_computer, read_address, shown
from stoker.host.http.exchange import BodySource, Reply, Request, Transport
from stoker.host.http.failures import Reason
from stoker.model.clock import Clock
from stoker.model.errors import BadAnswer, BadInput, NetworkFailed, RateLimited, StokerError, Unavailable
from stoker.model.fleet_errors import DatabaseTrouble, NoCoordinator
from stoker.model.frozen import fresh, frozen
from stoker.model.retry import pause_s
from stoker.wire.codec import from_json, to_json
from stoker.wire.protocol import TOKEN_HEADER, VERSION, VERSION_HEADER
from stoker.wire.refusals import no_coordinator_there, refusal
from stoker.wire.trust_hints import trust_hint

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

MOST_ANSWER_BYTES = 64 * 1024 * 1024
_MOST_REFUSAL_BYTES = 1024 * 1024
_PIECE_BYTES = 256 * 1024
_WHOLE_ANSWER_S = 300.0
"""However steadily it dribbles. Bytes of files and objects take as long as they take."""

_READING = frozenset({"GET", "HEAD"})

Query = Mapping[str, str | int | float | None]


@frozen
class Question:
    """One request in the coordinator's terms."""

    path: str
    """Escaped."""
    method: str = "GET"
    query: Query = fresh(factory=dict)
    """What is nothing or empty is left out."""
    body: BaseModel | bytes | BodySource | None = None
    headers: Mapping[str, str] = fresh(factory=dict)
    is_repeatable: bool = False
    """Asked twice, it does what it does once."""
    waits_s: float = 0.0
    """How long the coordinator may hold it open."""
    silence_s: float | None = None
    """Without a byte of the answer, if not as `Patience` says."""


@frozen
class Patience:
    """How long to wait for what."""

    answer_s: float = 30.0
    """For the head of one answer."""
    silence_s: float = 30.0
    """Without a byte of its body."""
    retry_s: float = 10.0
    """For asking again, all in all; 0: ask once."""
    first_pause_s: float = 0.1
    longest_pause_s: float = 2.0


class Speaker:
    """Speaks to one coordinator. Safe to use from several threads."""

    def __init__(
        self,
        transport: Transport,
        url: str,
        *,
        clock: Clock,
        token: str = "",
        patience: Patience | None = None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        address = read_address(url)
        self.url = address.url.rstrip("/")
        """Without credentials: every message may show it."""
        self._shown = shown(self.url)
        self._transport = transport
        self._clock = clock
        self._patience = patience or Patience()
        self._chance = chance or random.SystemRandom().random
        self._headers = {VERSION_HEADER: str(VERSION)}
        if token:
            if address.origin.scheme == "http" and not is_this_computer(address.origin.host):
                # Whoever listens there is no coordinator of ours, and anybody on the way would read it.
                hint = f"https://{address.origin.host_and_port}, or a tunnel: ssh -L OWN.sock:ITS.sock HOST"
                raise BadInput(f"a token is not sent to {self._shown} in clear", hint=hint)
            self._headers[TOKEN_HEADER] = token
        if address.authorization:
            self._headers["Authorization"] = address.authorization

    @property
    def clock(self) -> Clock:
        return self._clock

    @property
    def patience(self) -> Patience:
        return self._patience

    def ask(self, question: Question, kind: type[M]) -> M:
        """Ask, and give the answer as a message."""
        request = self._request(question)

        def read() -> M:
            with closing(self._send(request)) as reply:
                data = self._whole(reply, MOST_ANSWER_BYTES)
            try:
                return from_json(kind, data)
            except ValueError as error:
                raise no_coordinator_there(self._shown, f"{question.path}: {error}") from None

        return self._patiently(read, is_repeatable=request.is_repeatable)

    def open(self, question: Question) -> Reply:
        """Ask for bytes, and give the answer to be read and closed by whoever asked. Its status is below 300."""
        request = self._request(question)
        return self._patiently(lambda: self._send(request), is_repeatable=request.is_repeatable)

    def address(self, question: Question) -> tuple[str, dict[str, str]]:
        """Give the address of a question and the headers that go with it, for whoever asks it themselves."""
        request = self._request(question)
        return request.url, dict(request.headers)

    def read(self, reply: Reply, at_most_bytes: int = _PIECE_BYTES) -> bytes:
        """Give the next bytes of an answer; nothing at the end."""
        try:
            return reply.read(at_most_bytes)
        except NetworkFailed as error:
            raise self._unreachable(error) from error

    def pause(self, tries: int) -> None:
        """Wait before asking again: longer each time, by chance a little less."""
        patience = self._patience
        first_s, longest_s = patience.first_pause_s, patience.longest_pause_s
        self._clock.sleep(pause_s(tries, self._chance(), first_s=first_s, longest_s=longest_s))

    def _request(self, question: Question) -> Request:
        said = {name: value for name, value in question.query.items() if value is not None and value != ""}
        headers, body = {**self._headers, **question.headers}, question.body
        if isinstance(body, BaseModel):
            body = to_json(body)
            headers["Content-Type"] = "application/json"
        elif body is not None:
            headers.setdefault("Content-Type", "application/octet-stream")
        elif question.method not in _READING:
            body = b""
        return Request(
            url=f"{self.url}{question.path}{f'?{urlencode(said)}' if said else ''}",
            method=question.method,
            headers=headers,
            body=body,
            is_repeatable=question.is_repeatable or question.method in _READING,
            head_s=self._patience.answer_s + question.waits_s,
            read_s=self._patience.silence_s if question.silence_s is None else question.silence_s,
        )

    def _send(self, request: Request) -> Reply:
        try:
            reply = self._transport.send(request)
        except NetworkFailed as error:
            raise self._unreachable(error) from error
        except BadAnswer as error:
            raise no_coordinator_there(self._shown, error.message) from error
        if HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
            return reply
        with closing(reply):
            if reply.status < HTTPStatus.BAD_REQUEST:
                raise no_coordinator_there(self._shown, f"it answered {reply.status}", status=reply.status)
            data = self._whole(reply, _MOST_REFUSAL_BYTES)
        raise refusal(reply.status, data, is_ours=VERSION_HEADER in reply.headers, url=self._shown)

    def _whole(self, reply: Reply, most_bytes: int) -> bytes:
        pieces, size = [], 0
        until_s = self._clock.monotonic_s() + _WHOLE_ANSWER_S
        while piece := self.read(reply):
            size += len(piece)
            if self._clock.monotonic_s() > until_s:
                raise no_coordinator_there(self._shown, f"an answer that takes more than {_WHOLE_ANSWER_S:.0f} seconds")
            if size > most_bytes:
                raise no_coordinator_there(self._shown, f"an answer of more than {most_bytes} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    def _patiently(self, act: Callable[[], T], *, is_repeatable: bool) -> T:
        until_s = self._clock.monotonic_s() + self._patience.retry_s
        tries = 0
        while True:
            try:
                return act()
            except StokerError as error:
                if not (is_repeatable and is_passing(error)) or self._clock.monotonic_s() >= until_s:
                    raise
            self.pause(tries)
            tries += 1

    def _unreachable(self, error: NetworkFailed) -> StokerError:
        if error.data.get("reason") == Reason.ABORTED:
            return error
        hint = "is `stoker serve` running there? --at URL or STOKER_COORDINATOR names another one"
        if error.data.get("sockets"):
            hint = error.hint
        what = f"the coordinator at {self._shown} can't be reached: {error.message}"
        about = {name: error.data.get(name) for name in ("reason", "is_lasting", "verify_code", "tls")}
        lasting_hint = trust_hint(error) or error.hint
        return NoCoordinator(what, hint=lasting_hint if about["is_lasting"] else hint, url=self._shown, **about)


def is_passing(error: StokerError) -> bool:
    """Say whether the same question may get another answer in a moment."""
    if isinstance(error, NoCoordinator):
        return not error.data.get("is_lasting")
    return isinstance(error, DatabaseTrouble | RateLimited) or type(error) is Unavailable


def part(text: str) -> str:
    """Give a name as one part of a path, whatever stands in it."""
    return quote(text, safe="")


def parts(path: str) -> str:
    """Give a path of several parts, each as it is."""
    return "/".join(map(part, path.split("/")))


def whole_number(text: str | None) -> int | None:
    """Read a header's whole number; nothing where there is none."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
