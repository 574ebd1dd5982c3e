"""A runtime of one's own: a bigram model, as a plug-in that answers JSON lines."""

from __future__ import annotations

import base64
import json
import struct
import sys
from collections.abc import Iterator
from typing import Any

model: dict[str, Any] = {}


def hello(_request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"v": 1, "name": "bigram", "version": "1.0", "can": ["tokenize", "logits"]}


def load(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with open(request["model"], encoding="utf-8") as file:
        model.update(json.load(file))
    ran = {"device": "cpu", "weights": "F32", "kv": "none", "flash": False, "kernels": ["cpu.lookup"]}
    yield {"ok": True, "n_vocab": len(model["letters"]), "n_layers": 0, "tensors": 1, "used": 1, "ran": ran}


def tokenize(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"ids": [model["letters"].index(one) for one in request["text"] if one in model["letters"]]}


def row_behind(ids: list[int], pos: int) -> list[float]:
    row: list[float] = model["table"][ids[pos]]
    return row


def logits(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for pos in range(len(request["ids"])):
        row = row_behind(request["ids"], pos)
        yield {"pos": pos, "logits": base64.b64encode(struct.pack(f"<{len(row)}f", *row)).decode()}
    yield {"done": len(request["ids"])}


def serve() -> None:
    operations = {"hello": hello, "load": load, "tokenize": tokenize, "logits": logits}
    for line in sys.stdin:
        request = json.loads(line)
        for response in operations[request["op"]](request):
            print(json.dumps(response), flush=True)


if __name__ == "__main__":
    serve()
