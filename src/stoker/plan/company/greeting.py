"""How whoever knocks at a company's door is greeted: by the company, by its keeper if that is over, or not in time."""

from __future__ import annotations

import fcntl
import os
import select
import socket
from typing import Any

from stoker.host.identity import ProcessIdentity
from stoker.model.clock import Clock
from stoker.model.errors import ProcessLost
from stoker.model.frozen import frozen
from stoker.plan.company.words import FORMAT, Frames, is_ready, receive, words_from_json


@frozen
class Greeted:
    """Who answered at the door."""

    identity: ProcessIdentity
    keeper: ProcessIdentity
    words_fd: int
    """Where the keeper leaves last words. Held shared as long as this member lives, for the keeper to see."""


class ComeAgain(Exception):
    """The company ended before this member was in it: the next one is to be found."""


class Unanswered(Exception):
    """The company has a door and does not answer: it hangs, or somebody stopped it."""


def be_greeted(
    link: socket.socket, frames: Frames, *, within_s: float, clock: Clock
) -> tuple[Greeted, list[dict[str, Any]]]:
    """Wait for the company to begin, which may take a while; give who greets, and what it said beside that.

    From then on its keeper sees this member. Raises `ComeAgain`, `Unanswered` if it takes too long, `ProcessLost` if
    there is nobody any more, `ValueError` for what is no greeting.
    """
    fds: list[int] = []
    deadline_s = clock.monotonic_s() + within_s
    try:
        while True:
            if not is_ready(link, select.POLLIN, deadline_s - clock.monotonic_s()):
                raise Unanswered
            data, more_fds = receive(link)
            fds += more_fds
            if not data:
                raise ComeAgain
            bodies = frames.feed(data)
            if bodies:
                return _read_greeting(bodies[0], fds), bodies[1:]
    finally:
        for fd in fds:
            os.close(fd)


def _read_greeting(body: dict[str, Any], fds: list[int]) -> Greeted:
    if body.get("over") is True:
        if isinstance(body.get("lost"), dict):
            words = words_from_json(body["lost"])
            said = words.said.strip().rpartition("\n")[2]
            raise ProcessLost(f"its company ended before it began ({words.how}){f': {said}' if said else ''}")
        if isinstance(body.get("refused"), dict):
            refused = body["refused"]
            raise ProcessLost(
                f"its company could not begin: {refused.get('message')}", hint=str(refused.get("hint", ""))
            )
        raise ComeAgain
    hello = body.get("hello")
    if body.get("v") != FORMAT or not isinstance(hello, dict) or len(fds) != 1:
        message = "it greets in another way"
        raise ValueError(message)
    identity = ProcessIdentity.from_dict(hello.get("identity") or {})
    keeper = ProcessIdentity.from_dict(hello.get("keeper") or {})
    # An opening of our own, for a lock of our own: what came by a message is the same as everybody's.
    words_fd = os.open(f"/proc/self/fd/{fds[0]}", os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(words_fd, fcntl.LOCK_SH)
    return Greeted(identity=identity, keeper=keeper, words_fd=words_fd)
