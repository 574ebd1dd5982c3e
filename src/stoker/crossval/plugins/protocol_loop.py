"""The child's side of the plug-in protocol: one JSON line per request on standard input, its responses on output.

A plug-in is a `ModelPlugin`, and `serve` answers requests with it until its input ends. What libraries print on
standard output goes to standard error, which is the log. Vectors are base64 of little-endian float32.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

VERSION = 1
_LONGEST_MESSAGE = 2000
_SLICE_BYTES = 1 << 20

Row = dict[str, Any]
"""One response line of `logits`."""


class PluginError(Exception):
    """What a request can't do, with a code for programs: `load_failed`, `hash_mismatch`, `unsupported`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class ModelPlugin:
    """One runtime with at most one model. What it can't do, it leaves as it is here and out of `can`."""

    name = ""
    version = ""
    can: tuple[str, ...] = ("logits",)

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        """Load a model and return what the response says of it."""
        raise NotImplementedError

    def tokenize(self, text: str, *, special: bool) -> Sequence[int]:
        """Return the ids of a text, without any that mark its beginning or end."""
        raise PluginError("unsupported", f"{self.name} can't tokenize")

    def logits(self, ids: Sequence[int], pieces: Iterable[tuple[int, int]], *, layers: bool) -> Iterator[Row]:
        """Return the rows of all positions in order, computed in these pieces (from, to) of the ids."""
        raise NotImplementedError

    def replay(self, layer: int, values: bytes) -> bytes:
        """Return what a layer makes of the hidden states of a whole sequence."""
        raise PluginError("unsupported", f"{self.name} can't replay a layer")


def serve(make: Callable[[], ModelPlugin]) -> None:
    """Answer requests until standard input ends. The plug-in is made for the first one, which hears why it can't be."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)
    held: list[ModelPlugin] = []
    for line in sys.stdin.buffer:
        _answer(held, make, line, out)
        out.flush()
    sys.stderr.flush()
    # Some libraries take seconds to unload.
    os._exit(0)


def pack(values: Any) -> str:
    """Return the base64 of a vector: bytes, or anything with a buffer of little-endian float32."""
    return base64.b64encode(values).decode("ascii")


def logits_row(pos: int, values: Any) -> Row:
    """Return the response line with the logits of a position."""
    return {"pos": pos, "logits": pack(values)}


def layer_row(pos: int, layer: str, values: Any) -> Row:
    """Return the response line with the values of a layer at a position."""
    return {"pos": pos, "layer": layer, "values": pack(values)}


def verify_file(path: str, sha256: str) -> None:
    """Raise `PluginError` if a file is missing, or has another digest than the request names."""
    if not os.path.exists(path):
        raise PluginError("load_failed", f"{path} does not exist")
    if not sha256 or not os.path.isfile(path):
        return
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(_SLICE_BYTES):
            found.update(data)
    if found.hexdigest() != sha256:
        raise PluginError("hash_mismatch", f"{path} has the digest {found.hexdigest()}, not {sha256}")


def vocabulary_digest(tokens: Iterable[bytes]) -> str:
    """Return the digest of a vocabulary: SHA-256 of each token in order of ids, as LENGTH:BYTES."""
    found = hashlib.sha256()
    for token in tokens:
        found.update(b"%d:%s" % (len(token), token))
    return found.hexdigest()


def pieces_of(length: int, chunk: int, decode_from: int | None) -> Iterator[tuple[int, int]]:
    """Cut positions into pieces of at most `chunk`; from `decode_from` on one at a time."""
    prefill = length if decode_from is None else min(decode_from, length)
    for begin in range(0, prefill, chunk):
        yield begin, min(begin + chunk, prefill)
    for at in range(prefill, length):
        yield at, at + 1


def _answer(held: list[ModelPlugin], make: Callable[[], ModelPlugin], line: bytes, out: IO[str]) -> None:
    try:
        held += [] if held else [make()]
        request = json.loads(line)
        if not isinstance(request, dict) or request.get("op") not in _OPERATIONS:
            raise PluginError("bad_request", f"not a request: {line[:100]!r}")
        _OPERATIONS[request["op"]](held[0], request, out)
    except PluginError as error:
        _refuse(out, error.code, str(error))
    except MemoryError as error:
        _refuse(out, "out_of_memory", f"out of memory: {error}")
    except Exception as error:  # noqa: BLE001 - a runtime raises anything, and the parent must hear of it
        traceback.print_exc()
        is_memory = type(error).__name__ == "OutOfMemoryError"
        _refuse(out, "out_of_memory" if is_memory else "failed", f"{type(error).__name__}: {error}")


def _refuse(out: IO[str], code: str, message: str) -> None:
    _say(out, {"error": {"code": code, "message": " ".join(message.split())[:_LONGEST_MESSAGE]}})


def _say(out: IO[str], response: Row) -> None:
    out.write(json.dumps(response))
    out.write("\n")


def _hello(plugin: ModelPlugin, _request: dict[str, Any], out: IO[str]) -> None:
    _say(out, {"v": VERSION, "name": plugin.name, "version": plugin.version, "can": list(plugin.can)})


def _load(plugin: ModelPlugin, request: dict[str, Any], out: IO[str]) -> None:
    _say(out, {"ok": True, **plugin.load(request)})


def _tokenize(plugin: ModelPlugin, request: dict[str, Any], out: IO[str]) -> None:
    ids = plugin.tokenize(str(request["text"]), special=bool(request.get("special")))
    _say(out, {"ids": [int(one) for one in ids]})


def _logits(plugin: ModelPlugin, request: dict[str, Any], out: IO[str]) -> None:
    ids = [int(one) for one in request["ids"]]
    if not ids:
        raise PluginError("bad_request", "no ids")
    chunk = max(1, int(request.get("chunk") or len(ids)))
    decode_from = request.get("decode_from")
    pieces = pieces_of(len(ids), chunk, None if decode_from is None else int(decode_from))
    for row in plugin.logits(ids, pieces, layers=bool(request.get("layers"))):
        _say(out, row)
    _say(out, {"done": len(ids)})


def _replay(plugin: ModelPlugin, request: dict[str, Any], out: IO[str]) -> None:
    values = base64.b64decode(request["input"], validate=True)
    _say(out, {"output": pack(plugin.replay(int(request["layer"]), values))})


_OPERATIONS: dict[str, Callable[[ModelPlugin, dict[str, Any], IO[str]], None]] = {
    "hello": _hello,
    "load": _load,
    "tokenize": _tokenize,
    "logits": _logits,
    "replay": _replay,
}
