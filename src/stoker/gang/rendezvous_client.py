"""The side of a TCP rendezvous that comes to it: it proves itself, says what it brings, and learns the rest."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from stoker.core.clock import SystemClock
from stoker.core.errors import Cancelled, InternalError, RendezvousFailed
from stoker.core.frozen import changed
from stoker.gang import rendezvous as lines
from stoker.gang.rendezvous import UNHEARD_S, BadLine, RendezvousConnection, TcpRendezvous, check_words, vanished
from stoker.gang.rendezvous_types import (
    CLOSED,
    UP,
    HostFailure,
    HostPart,
    HostRanks,
    RendezvousOutcome,
    failed,
    not_arrived,
    settled,
)

_DIAL_S = 2.0
_AGAIN_S = 0.1
# The holder's deadline comes first, so that it, who knows who is missing, speaks first.
_MARGIN_S = 1.0
_MOST_EPOCH = 2**53


class RendezvousClient(TcpRendezvous):
    """A rendezvous that is held elsewhere."""

    def __init__(self, name: str, *, at: tuple[str, int], token: str, epoch: int, unheard_s: float = UNHEARD_S) -> None:
        """`at` is where it is held; whether it is, `gather` finds out. Raises `BadGang`.

        `unheard_s` is how long the holder may be out of reach.
        """
        check_words([name], token, epoch)
        super().__init__(name, token, epoch)
        self._at = at
        self._unheard_s = unheard_s
        self._talk: RendezvousConnection | None = None
        self._is_disconnected = False
        """True if the connection broke before the host sent more than its welcome."""
        self._holder = f"{at[0]}:{at[1]}"

    def gather(self, part: HostPart, timeout_s: float, is_cancelled: Callable[[], bool] = bool) -> HostRanks:
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + timeout_s
        while True:
            # The holder may not have learned of us if the connection breaks now: then it expects us again.
            was_disconnected, self._is_disconnected = self._is_disconnected, False
            self._talk = talk = self._reach(deadline_s, timeout_s, is_cancelled, is_again=was_disconnected)
            self._start(self._listen, talk)
            self._say("attending", ranks=part.ranks, devices=list(part.devices))
            left_s = max(0.0, deadline_s - clock.monotonic_s())
            if not self._wait(
                lambda: self._host_ranks is not None or self._is_disconnected, left_s + _MARGIN_S, is_cancelled
            ):
                raise failed(settled(self, not_arrived([self._holder], timeout_s)))
            if not self._is_disconnected:
                break
            talk.close()
        if self._host_ranks is None or self._verdict is not None:
            raise failed(self._verdict or RendezvousOutcome(cause=vanished(self._holder, "closed")))
        return self._host_ranks

    def publish(self, place: str) -> None:
        raise InternalError(f"{self.name} can't publish {place}: the first host does")

    def arrive(self, point: str) -> None:
        self._say("arrived", point=point)

    def missing(self, point: str) -> tuple[str, ...]:
        return () if point in self._passed else (self._holder,)

    def fail(self, cause: HostFailure) -> None:
        self._say("failed", cause=lines.write_cause(cause), ago_s=0.0)

    def close(self) -> None:
        with self._news:
            if self._is_closed:
                return
            self._is_closed = True
        self._say("bye")
        if self._talk is not None:
            self._talk.close()
        self._end_threads()

    def _reach(
        self, deadline_s: float, timeout_s: float, is_cancelled: Callable[[], bool], *, is_again: bool
    ) -> RendezvousConnection:
        """Connect to the rendezvous, which may have yet to begin. Raises `RendezvousFailed`, `Cancelled`.

        `is_again`: this host was let in before and lost the connection, so a holder that is gone is not waited for.
        """
        clock = SystemClock()
        why = "connection refused"
        while (left_s := deadline_s - clock.monotonic_s()) > 0:
            if is_cancelled() or self._is_closed:
                raise Cancelled("the gang was cancelled")
            try:
                talk = RendezvousConnection(
                    socket.create_connection(self._at, timeout=min(left_s, _DIAL_S)), self._unheard_s
                )
            except OSError as error:
                why = str(error.strerror or error)
                if is_again and isinstance(error, ConnectionRefusedError):
                    raise failed(RendezvousOutcome(cause=vanished(self._holder, why))) from error
            else:
                try:
                    if self._is_let_in(talk, left_s):
                        return talk
                except RendezvousFailed as error:
                    if not is_again:
                        raise
                    gone = vanished(self._holder, f"the connection broke, and a second one was refused: {error}")
                    raise failed(RendezvousOutcome(cause=gone)) from error
                why = "it is held for an older epoch, or ended the conversation"
            clock.sleep(min(_AGAIN_S, left_s))
        cause = not_arrived([self._holder], timeout_s)
        raise failed(RendezvousOutcome(cause=changed(cause, message=f"{cause.message}: {why}")))

    def _is_let_in(self, talk: RendezvousConnection, left_s: float) -> bool:
        """Prove who we are, and have the holder prove itself; `False`: try again. Raises `RendezvousFailed`."""
        try:
            return self._prove(talk, left_s)
        except (OSError, BadLine):
            talk.close()
            return False
        except RendezvousFailed:
            talk.close()
            raise

    def _prove(self, talk: RendezvousConnection, left_s: float) -> bool:
        theirs = lines.nonce_of(self._heard(talk, "challenge", left_s))
        nonce = secrets.token_hex(32)
        proven: dict[str, Any] = {"epoch": self.epoch, "nonces": (theirs, nonce), "name": self.name}
        proof = lines.proof(self._token, "guest", **proven)
        talk.send(lines.write("hello", name=self.name, epoch=self.epoch, nonce=nonce, proof=proof))
        answer = self._heard(talk, "welcome", left_s)
        if answer["kind"] == "refused":
            if 0 <= lines.number(answer, "epoch", _MOST_EPOCH, -1) < self.epoch:
                # What is held there has to end first.
                talk.close()
                return False
            why = lines.text(answer, "why")
            raise RendezvousFailed(f"{self._holder} refused {self.name}: {why}", host=self._holder, why=why)
        if not lines.is_proven(lines.text(answer, "proof"), self._token, "holder", **proven):
            why = "it does not know the token"
            raise RendezvousFailed(
                f"{self._holder} is not the host of this rendezvous: {why}", host=self._holder, why=why
            )
        self._holder = lines.name_of(answer)
        return True

    def _heard(self, talk: RendezvousConnection, kind: str, left_s: float) -> lines.RendezvousMessage:
        got = talk.receive(most_bytes=lines.MOST_STRANGE_BYTES, within_s=left_s)
        line = lines.read(got or b"")
        if line["kind"] not in {kind, "refused"}:
            message = f"{line['kind']!r} where {kind!r} was expected"
            raise BadLine(message)
        return line

    def _listen(self, talk: RendezvousConnection) -> None:
        why = "the connection ended"
        has_heard = False
        try:
            while (got := talk.receive()) is not None:
                has_heard = True
                line = lines.read(got)
                if line.get("epoch") != self.epoch:
                    message = f"message of epoch {line.get('epoch')!r}, expected {self.epoch}"
                    raise BadLine(message)
                if not self._hear(talk, line):
                    return
        except (OSError, BadLine) as error:
            why = str(error) or type(error).__name__
            has_heard = has_heard or isinstance(error, BadLine)
        finally:
            self._tell_news()
        if not has_heard and not self._is_closed:
            self._is_disconnected = True
            self._tell_news()
            return
        self._end(RendezvousOutcome(cause=vanished(self._holder, why)))

    def _hear(self, talk: RendezvousConnection, line: lines.RendezvousMessage) -> bool:
        """Take in what the holder says; `False`: it was its last word. Raises `BadLine`."""
        kind = line["kind"]
        if kind == "seated" and self._host_ranks is None:
            self._take_ranks(talk, line)
        elif kind == "published":
            place = lines.text(line, "place")
            if not lines.is_place(place):
                message = "published what is not an address"
                raise BadLine(message)
            self._place = place
        elif kind == "passed":
            self._passed.add(lines.name_of(line, "point"))
        elif kind == "over":
            self._end(lines.read_verdict(line))
            return False
        elif kind == "bye":
            if UP in self._passed:
                self._passed.add(CLOSED)
                self._tell_news()
            else:
                self._end(RendezvousOutcome(cause=vanished(self._holder, "it left before all were up")))
            return False
        else:
            message = f"unexpected message {kind!r}"
            raise BadLine(message)
        self._tell_news()
        return True

    def _take_ranks(self, talk: RendezvousConnection, line: lines.RendezvousMessage) -> None:
        hosts = lines.read_hosts(line)
        place = lines.number(line, "place", len(hosts) - 1, 1)
        if hosts[place].name != self.name:
            message = f"sent the place of {hosts[place].name}"
            raise BadLine(message)
        self._host_ranks = HostRanks(hosts=hosts, place=place, address=talk.own_address, epoch=self.epoch)

    def _end(self, verdict: RendezvousOutcome) -> None:
        with self._news:
            if self._verdict is None and not self._is_closed:
                self._verdict = verdict
        self._tell_news()

    def _say(self, kind: str, **fields: object) -> None:
        # A holder that does not take it is lost, which the connection tells.
        if self._talk is not None:
            with suppress(OSError):
                self._talk.send(lines.write(kind, epoch=self.epoch, **fields))
