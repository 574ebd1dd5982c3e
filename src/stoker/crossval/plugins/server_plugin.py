"""A plug-in: a server with the completions interface of OpenAI, asked for one token with its logprobs per position.

The model is its address: `http://127.0.0.1:8080/v1`, with `#NAME` behind it if it serves several. The prompt is sent
as token ids. A server that returns all logprobs is compared as any runtime; one that returns the top few sends `top`.
The servers of llama.cpp name tokens by `id`, those of vLLM by `token_id:N`; one that names them by text alone can't be
used. A key is in the variable STOKER_SERVER_KEY.
"""

from __future__ import annotations

import json
import math
import os
import struct
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stoker.crossval.plugins.protocol_loop import ModelPlugin, PluginError, Row, logits_row, serve

_KEY = "STOKER_SERVER_KEY"
_LARGEST_BYTES = 256 << 20
_TOP = 20
"""How many logprobs are asked of a server whose vocabulary is not known: OpenAI's own limit."""
_PREFIX = "token_id:"
_SHOWN = 300


class ServerPlugin(ModelPlugin):
    """One server, with one of its models."""

    name = "server"
    version = "1"
    can = ("tokenize", "logits")

    def __init__(self) -> None:
        # The address is the user's own words; no proxy and no other protocol stands between.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._base = ""
        self._model = ""
        self._timeout_s = 600.0
        self._n_vocab = 0
        self._seed = 0

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        address, _, model = str(request["model"]).partition("#")
        if not address.startswith(("http://", "https://")):
            raise PluginError("load_failed", f"{address} is no address of a server: http://HOST:PORT/v1")
        self._base = address.rstrip("/")
        self._seed = int(request.get("seed") or 0)
        listed = self._get("/models").get("data")
        names = {str(one.get("id")): one for one in listed if isinstance(one, dict)} if isinstance(listed, list) else {}
        if model and model not in names:
            raise PluginError("load_failed", f"{self._base} has no model {model}; it has {', '.join(names) or 'none'}")
        self._model = model or next(iter(names), "")
        about = names.get(self._model, {}).get("meta") or {}
        about = about if isinstance(about, dict) else {}
        self._n_vocab = int(about.get("n_vocab") or 0)
        # llama.cpp says `all F32`, `mostly Q8_0`.
        weights = str(about.get("ftype") or "").rpartition(" ")[2]
        self._next([0])
        return {
            "n_vocab": self._n_vocab,
            "n_layers": 0,
            "width": 0,
            "ran": {"device": "server", "weights": weights, "kv": "", "flash": False, "kernels": []},
            "tensors": 0,
            "used": 0,
            "tokenizer_sha256": "",
        }

    def tokenize(self, text: str, *, special: bool) -> Sequence[int]:
        # llama.cpp reads the first two, vLLM the others. Both have it beside /v1.
        body = {
            "content": text,
            "parse_special": special,
            "prompt": text,
            "model": self._model,
            "add_special": False,
            "add_special_tokens": False,
        }
        found = self._call(f"{self._base.removesuffix('/v1')}/tokenize", body).get("tokens")
        if not isinstance(found, list) or not all(isinstance(one, int) for one in found):
            raise PluginError("unsupported", f"{self._base} returns no ids of tokens")
        return found

    def logits(self, ids: Sequence[int], pieces: Iterable[tuple[int, int]], *, layers: bool) -> Iterator[Row]:
        if not self._base:
            raise PluginError("no_model", "no server is named")
        for pos in range(len(ids)):
            found = self._next(ids[: pos + 1])
            if self._n_vocab and len(found) == self._n_vocab:
                values = [math.nan] * self._n_vocab
                for number, value in found.items():
                    values[number] = value
                yield logits_row(pos, struct.pack(f"<{self._n_vocab}f", *values))
            else:
                yield {"pos": pos, "top": sorted(map(list, found.items()), key=lambda pair: -pair[1])}

    def _next(self, ids: Sequence[int]) -> dict[int, float]:
        """Return the logprobs of the token behind a prompt, by id."""
        body = {
            "model": self._model,
            "prompt": list(ids),
            "max_tokens": 1,
            "logprobs": self._n_vocab or _TOP,
            "temperature": 0,
            "seed": self._seed,
            "return_tokens_as_token_ids": True,
        }
        choices = self._post("/completions", body).get("choices")
        found = choices[0].get("logprobs") if isinstance(choices, list) and choices else None
        if not isinstance(found, dict):
            raise PluginError("no_logprobs", f"{self._base} returned no logprobs behind {len(ids)} tokens")
        pairs = dict(_pairs(found))
        if not pairs:
            raise PluginError("no_token_ids", f"{self._base} names tokens by text, not by id")
        return pairs

    def _get(self, path: str) -> dict[str, Any]:
        return self._call(f"{self._base}{path}", None)

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._call(f"{self._base}{path}", body)

    def _call(self, url: str, body: dict[str, Any] | None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(_KEY):  # noqa: TID251 - a program of its own
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - `load` has checked the scheme
        try:
            with self._opener.open(request, timeout=self._timeout_s) as response:
                read = response.read(_LARGEST_BYTES + 1)
        except urllib.error.HTTPError as error:
            said = " ".join(error.read(_SHOWN).decode("utf-8", "replace").split())
            raise PluginError("server_failed", f"{url}: {error.code} {said}") from error
        except OSError as error:
            raise PluginError("server_failed", f"{url}: {getattr(error, 'reason', error)}") from error
        try:
            found = json.loads(read) if len(read) <= _LARGEST_BYTES else None
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise PluginError("server_failed", f"{url}: not a JSON object: {read[:_SHOWN]!r}")
        return found


def _pairs(found: dict[str, Any]) -> Iterator[tuple[int, float]]:
    """Return ids and logprobs from either form: a list of objects, or a map from the token's name."""
    content = found.get("content")
    if isinstance(content, list) and content:
        for one in content[0].get("top_logprobs") or ():
            if isinstance(one.get("id"), int):
                yield one["id"], float(one["logprob"])
        return
    listed = found.get("top_logprobs")
    if isinstance(listed, list) and listed and isinstance(listed[0], dict):
        for name, value in listed[0].items():
            if name.startswith(_PREFIX) and name[len(_PREFIX) :].isdecimal():
                yield int(name[len(_PREFIX) :]), float(value)


if __name__ == "__main__":
    serve(ServerPlugin)
