"""A folder as a training leaves it: weights as bf16, optimiser state as fp32, a log of JSON lines.

Numbers around zero: their mantissas are noise, their high bytes a sign and one of a few exponents, each a quarter as
frequent as the one above it. That is what compression finds in them; the log compresses well.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

_PIECE_BYTES = 4 * 2**20
_SHARDS = 4
_WEIGHTS, _STATE = 0.4, 0.55
"""Shares of the whole; the log is the rest."""


def make(folder: Path, size_bytes: int) -> None:
    """Makes the folder, of about that size."""
    folder.mkdir(parents=True)
    for number in range(_SHARDS):
        _numbers(folder / f"model-{number}.safetensors", int(size_bytes * _WEIGHTS) // _SHARDS, width=2)
        _numbers(folder / f"optimiser-{number}.bin", int(size_bytes * _STATE) // _SHARDS, width=4)
    _log(folder / "log.jsonl", int(size_bytes * (1 - _WEIGHTS - _STATE)))


def _numbers(place: Path, size_bytes: int, *, width: int) -> None:
    with place.open("wb") as written:
        for _ in range(max(1, size_bytes // _PIECE_BYTES)):
            piece = bytearray(os.urandom(_PIECE_BYTES))
            piece[width - 1 :: width] = os.urandom(_PIECE_BYTES // width).translate(_HIGH_BYTES)
            written.write(piece)


def _log(place: Path, size_bytes: int) -> None:
    drawn = random.Random(4)
    with place.open("w") as written:
        step = 0
        while written.tell() < size_bytes:
            lines = [
                json.dumps(
                    {"step": step + number, "loss": drawn.random(), "rate": 3e-4, "tokens": 4096 * (step + number)}
                )
                for number in range(1000)
            ]
            written.write("\n".join(lines) + "\n")
            step += len(lines)


def _high_bytes() -> bytes:
    """What a uniform byte becomes: the top exponent for three in four, the next for three in sixteen, …; and a sign."""
    drawn = []
    for byte in range(256):
        sign, rest = byte & 0x80, byte & 0x7F
        steps = next(step for step in range(5) if rest < 128 - 128 // 4 ** (step + 1) or step == 4)
        drawn.append(sign | (0x3E - steps))
    return bytes(drawn)


_HIGH_BYTES = _high_bytes()
