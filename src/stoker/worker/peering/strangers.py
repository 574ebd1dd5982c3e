"""Who has connected and not yet shown a certificate: few at once, few from one address, and none for long.

They take no place of those who have shown theirs.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import threading
from collections import Counter

from stoker.model.clock import Clock

MOST = 32
MOST_EACH = 6
"""From one address."""
HANDSHAKE_S = 10.0
"""For all of it: who sends a byte now and then is not waited for either."""


class Strangers:
    """Counts them. Safe to use from several threads."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._by_address: Counter[str] = Counter()

    def enter(self, address: str) -> bool:
        """Take a place for somebody; false: there is none."""
        with self._turn:
            if self._by_address.total() >= MOST or self._by_address[address] >= MOST_EACH:
                return False
            self._by_address[address] += 1
            return True

    def leave(self, address: str) -> None:
        """Give the place back."""
        with self._turn:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]


def shake_hands(context: ssl.SSLContext, plain: socket.socket, clock: Clock) -> ssl.SSLSocket:
    """Speak TLS with whoever connected. Raises `OSError` for who does not, or is too slow."""
    silence_s, until_s = plain.gettimeout(), clock.monotonic_s() + HANDSHAKE_S
    plain.setblocking(False)
    secure = context.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
    try:
        while True:
            try:
                secure.do_handshake()
                secure.settimeout(silence_s)
                return secure
            except ssl.SSLWantReadError:
                wanted = selectors.EVENT_READ
            except ssl.SSLWantWriteError:
                wanted = selectors.EVENT_WRITE
            _wait(secure, wanted, until_s - clock.monotonic_s())
    except BaseException:
        secure.close()
        raise


def _wait(secure: ssl.SSLSocket, wanted: int, left_s: float) -> None:
    with selectors.DefaultSelector() as waiting:
        waiting.register(secure, wanted)
        if left_s <= 0 or not waiting.select(left_s):
            raise TimeoutError("the handshake took too long")
