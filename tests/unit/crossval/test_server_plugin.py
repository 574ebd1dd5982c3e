from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from stoker.core.errors import PluginFailed
from stoker.crossval.plugin_process import Plugin
from stoker.crossval.runtimes import RuntimePlaces, plugin_command, read_runtime


class Answers(BaseHTTPRequestHandler):
    """A server whose answers a test sets: by path, a text each."""

    answers: dict[str, str] = {}  # noqa: RUF012 - a test sets it
    keys: set[str] = set()  # noqa: RUF012 - the same

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.keys.add(self.headers.get("Authorization") or "")
        text = self.answers.get(self.path)
        body = (text if text is not None else "no such\nthing").encode()
        self.send_response(200 if text is not None else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as its base calls it
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    Answers.answers = {"/v1/models": json.dumps({"data": [{"id": "m"}]})}
    Answers.keys = set()
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
        thread.join()


@pytest.fixture
def plugin(address: str) -> Iterator[Plugin]:
    environment = {"STOKER_SERVER_KEY": "k3y", "http_proxy": "http://127.0.0.1:9"}
    here = RuntimePlaces(environment=environment, folder="/", own_prefix=sys.prefix, own_python=sys.executable)
    with Plugin(plugin_command(read_runtime(f"{address},env=STOKER_SERVER_KEY"), here)) as started:
        yield started


def _completion(logprobs: object) -> str:
    return json.dumps({"choices": [{"logprobs": logprobs}]})


def test_a_server_that_names_tokens_by_id_gives_its_top_logprobs(plugin: Plugin, address: str):
    Answers.answers["/v1/completions"] = _completion({"top_logprobs": [{"token_id:7": -0.25, "token_id:2": -1.5}]})
    Answers.answers["/tokenize"] = json.dumps({"tokens": [4, 5]})
    loaded = plugin.load(read_runtime(address).load_request(""))
    assert loaded.n_vocab == 0
    rows = list(plugin.logits([1, 2]))
    assert [(row.pos, row.top) for row in rows] == [(0, ((7, -0.25), (2, -1.5))), (1, ((7, -0.25), (2, -1.5)))]
    assert plugin.tokenize("ab") == (4, 5)
    assert Answers.keys == {"Bearer k3y"}


@pytest.mark.parametrize(
    ("completion", "reason"),
    [
        (_completion({"top_logprobs": [{"the": -0.25}]}), "no_token_ids"),
        (_completion(None), "no_logprobs"),
        (json.dumps({"choices": []}), "no_logprobs"),
        ("<html>", "server_failed"),
        (None, "server_failed"),
    ],
)
def test_what_a_server_can_not_do_has_a_reason(plugin: Plugin, address: str, completion: str | None, reason: str):
    if completion is not None:
        Answers.answers["/v1/completions"] = completion
    with pytest.raises(PluginFailed) as raised:
        plugin.load(read_runtime(address).load_request(""))
    assert raised.value.data["reason"] == reason
