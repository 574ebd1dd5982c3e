"""Somebody who is told of events: a real HTTP server that takes messages, fails, hangs or sends them elsewhere.

    with receiver("500", "200") as told:
        … told.url …
        told.wait_for(2)

Answers are given in order; the last one stays. `hang` never answers, `302` names another address.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATIENCE_S = 30.0
MOST_BYTES = 1 << 20


@dataclass(slots=True)
class Message:
    path: str
    headers: dict[str, str]
    body: bytes
    answered: str


@dataclass(slots=True)
class Told:
    """What somebody was told."""

    url: str
    messages: list[Message] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    elsewhere: str = ""
    over: threading.Event = field(default_factory=threading.Event)
    news: threading.Condition = field(default_factory=threading.Condition)

    def take(self, path: str, headers: dict[str, str], body: bytes) -> str:
        with self.news:
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            self.messages.append(Message(path, headers, body, answer))
            self.news.notify_all()
        return answer

    def wait_for(self, count: int) -> list[Message]:
        """Return the messages, once there are so many."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.messages) >= count, PATIENCE_S), self.messages
            return list(self.messages)


@contextmanager
def receiver(*answers: str) -> Iterator[Told]:
    """Take messages until the block ends."""

    class Door(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(min(int(self.headers.get("Content-Length", "0")), MOST_BYTES))
            answer = told.take(self.path, dict(self.headers.items()), body)
            if answer == "hang":
                told.over.wait(PATIENCE_S)
                return
            self.send_response(int(answer))
            if answer == "302":
                self.send_header("Location", told.elsewhere)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            """Whoever hangs up while it is answered is nobody's failure."""

    server = Server(("127.0.0.1", 0), Door)
    told = Told(f"http://127.0.0.1:{server.server_address[1]}/hook", answers=list(answers or ("200",)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield told
    finally:
        told.over.set()
        server.shutdown()
        thread.join()
        server.server_close()
