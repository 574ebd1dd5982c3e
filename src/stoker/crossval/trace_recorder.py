"""Ask a plug-in for everything that a comparison needs, and write it as a trace.

The reference is traced first: its tokenizer makes the token ids, and the candidate is asked for the same ids, whatever
its own tokenizer makes of the texts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stoker.core.clock import Clock
from stoker.core.errors import StageInputError
from stoker.core.frozen import fields_of, fresh, frozen
from stoker.crossval.plugin_messages import Loaded, LoadRequest, PluginInfo, PluginRow, require_promised
from stoker.crossval.plugin_process import Plugin
from stoker.crossval.trace import TraceHeader, TraceWriter, decode_from
from stoker.store.statements import moment

POSITIONS = 64
MOST_POSITIONS = 1 << 20
TEXT = (
    "Each position of this text is compared: a model reads it once as a whole, then its second half word by word. "
    "Names, numbers (3.14, 2026) and signs such as +, %, / and ~ give a tokenizer something to disagree about."
)
_LAYER = re.compile(r"embd|l_out-\d+")

Step = Callable[[int], None]
"""Is called with the number of positions that are done."""


@frozen
class TraceRequest:
    """What a trace is to contain."""

    load: LoadRequest
    label: str
    """The runtime as a person chose it."""
    texts: tuple[str, ...] = (TEXT,)
    ids: tuple[int, ...] = ()
    """Token ids of the other side; empty: those of the texts."""
    positions: int = POSITIONS
    """At most that many; the first ones."""
    chunk: int = 0
    has_layers: bool = True
    has_decode: bool = True
    is_strict: bool = False
    """Fail if the plug-in did not run as requested."""
    machine: Mapping[str, Any] = fresh(factory=dict)
    files: Mapping[str, str] = fresh(factory=dict)
    """SHA-256 of each file of the model, by its name."""


def record_trace(plugin: Plugin, request: TraceRequest, folder: str, clock: Clock, step: Step) -> TraceHeader:
    """Write a trace into an empty folder. Raises what a plug-in raises; `StageInputError` if there are no tokens."""
    info = plugin.hello()
    loaded = plugin.load(request.load)
    if request.is_strict:
        require_promised(request.load, loaded, label=request.label)
    tokens = tuple(plugin.tokenize(text) for text in request.texts) if "tokenize" in info.can else ()
    ids = request.ids or tuple(one for row in tokens for one in row)[: request.positions]
    _check_ids(ids, loaded, request, has_tokenizer="tokenize" in info.can)
    first = decode_from(len(ids))
    with TraceWriter(folder) as writer:
        began_s = clock.monotonic_s()
        has_layers = request.has_layers and "layers" in info.can
        for row in plugin.logits(ids, request.chunk, layers=has_layers):
            _write(writer, row, "logits.f32", len(ids))
            step(row.pos + 1)
        seconds = clock.monotonic_s() - began_s
        has_top = not loaded.n_vocab or writer.has("top.jsonl")
        has_decode = request.has_decode and not has_top and len(ids) > 1
        if has_decode:
            for row in plugin.logits(ids, request.chunk, decode_from=first):
                if row.pos >= first:
                    _write(writer, row, "decode.f32", len(ids))
        header = _header(request, info, loaded, ids, tokens)
        more = {"layers": writer.layers, "width": writer.width, "has_decode": has_decode, "has_top": has_top}
        at = {"prefill_s": round(seconds, 6), "traced_at": moment(clock.wall_s())}
        whole = TraceHeader(**{**header, **more, **at})
        writer.finish(whole)
    return whole


def _write(writer: TraceWriter, row: PluginRow, name: str, count: int) -> None:
    if row.layer is not None:
        if _LAYER.fullmatch(row.layer):
            writer.put_layer(row.layer, row.pos, count, row.values.cast("B"))
    elif row.top:
        writer.append_top(row.top)
    else:
        writer.append(name, row.values.cast("B"))


def _check_ids(ids: Sequence[int], loaded: Loaded, request: TraceRequest, *, has_tokenizer: bool) -> None:
    if not ids:
        why = "makes no token of the texts" if has_tokenizer else "has no tokenizer, and got no token ids"
        raise StageInputError(f"{request.label} {why}", hint="a longer --text; a reference needs a tokenizer")
    if loaded.n_vocab and max(ids) >= loaded.n_vocab:
        raise StageInputError(
            f"token {max(ids)} is beyond the vocabulary of {request.label}, which has {loaded.n_vocab} tokens",
            hint="are both sides the same model?",
        )


def _header(
    request: TraceRequest, info: PluginInfo, loaded: Loaded, ids: Sequence[int], tokens: tuple[tuple[int, ...], ...]
) -> dict[str, Any]:
    return {
        "runtime": info.name,
        "version": info.version,
        "model": os.path.basename(os.path.normpath(request.load.model)),
        "sha256": request.load.sha256,
        "ids": tuple(ids),
        "texts": request.texts,
        "tokens": tokens,
        "n_vocab": loaded.n_vocab,
        "n_layers": loaded.n_layers,
        "ran": {**fields_of(loaded.ran), "kernels": list(loaded.ran.kernels), "build": dict(loaded.build)},
        "requested": {name: value for name, value in fields_of(request.load).items() if name != "model"},
        "tokenizer_sha256": loaded.tokenizer_sha256,
        "tensors": loaded.tensors,
        "used": loaded.used,
        "machine": dict(request.machine),
        "files": dict(request.files),
        "is_strict": request.is_strict,
    }
