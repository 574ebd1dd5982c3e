"""Compare two traces over the ladder: tokens, embedding, layers by replay, head, logits of one pass and of a decode.

A side that can be asked for one layer alone replays the layers of the other: each gets the input that the other side's
layer had, and its output is compared with what the other side made of it. Files and weights are compared before, by
`tensor_files`; their steps are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.core.errors import StageInputError
from stoker.crossval.ladder import (
    STEPS,
    LayerRow,
    Outcome,
    Parity,
    Step,
    failed,
    judge,
    judge_embedding,
    judge_layers,
    judge_positions,
    judge_tokens,
    skipped,
)
from stoker.crossval.limits import Limits, limits_for, with_changes
from stoker.crossval.metrics import LogitsComparison, PositionRow, compare_top, relative_error
from stoker.crossval.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stoker.crossval.plugin_process import Plugin

    Replay = Callable[[int, NDArray[Any]], NDArray[Any]]

EMBEDDING = "embd"
"""The name of the first layer's input."""


def compare_traces(
    candidate: Trace,
    reference: Trace,
    *,
    before: Sequence[Step] = (),
    replay: Replay | None = None,
    is_replayed_by_candidate: bool = False,
    changes: Mapping[str, float] | None = None,
) -> Parity:
    """Return the verdict. `before` are the steps of files and weights; `replay` runs one layer of one of the sides.

    Layer `n_layers` of a replay is the head: the final norm and the projection to logits.
    """
    limits = with_changes(limits_for(*candidate.header.precisions, *reference.header.precisions), changes or {})
    inputs = reference if is_replayed_by_candidate else candidate
    tokens = _tokens(candidate, reference)
    if not _have_same_ids(candidate, reference, tokens):
        reason = "the sides got different token ids"
        return judge([*before, tokens, *(skipped(name, reason) for name in STEPS[STEPS.index("tokens") + 1 :])], limits)
    steps = [
        *before,
        tokens,
        _embedding(candidate, reference, limits),
        *(_layers(inputs, replay, limits) if replay else _shown_layers(candidate, reference, limits)),
        _logits(candidate, reference, limits),
        _decode(candidate, reference, limits),
    ]
    return judge(steps, limits)


def replay_by(plugin: Plugin) -> Replay:
    """Return the function that runs one layer of the model that a plug-in has loaded."""
    import numpy as np

    def replay(layer: int, values: NDArray[Any]) -> NDArray[Any]:
        made = plugin.replay(layer, values.astype("<f4").tobytes())
        return np.frombuffer(made.cast("B"), dtype="<f4").reshape(len(values), -1)

    return replay


def _have_same_ids(candidate: Trace, reference: Trace, tokens: Step) -> bool:
    """Return False if each side got the ids of its own tokenizer, and these disagree.

    Raises `StageInputError` if the traces are of different texts.
    """
    ours, theirs = candidate.header, reference.header
    if ours.texts == theirs.texts and ours.ids == theirs.ids:
        return True
    if ours.texts == theirs.texts and tokens.outcome is Outcome.FAILED:
        return False
    raise StageInputError("the two traces are of different token ids", hint="trace both sides with the same prompts")


def _tokens(candidate: Trace, reference: Trace) -> Step:
    ours, theirs = candidate.header, reference.header
    if not ours.tokens or not theirs.tokens:
        side = "candidate" if not ours.tokens else "reference"
        return skipped("tokens", f"the {side} has no tokenizer: both got the same token ids")
    return judge_tokens(ours.texts, theirs.tokens, ours.tokens)


def _embedding(candidate: Trace, reference: Trace, limits: Limits) -> Step:
    for side, one in (("candidate", candidate), ("reference", reference)):
        if one.header.layers[:1] != (EMBEDDING,):
            return skipped("embedding", f"the {side} does not show the input of its first layer")
    if candidate.header.width != reference.header.width:
        widths = f"reference {reference.header.width}, candidate {candidate.header.width}"
        return failed("embedding", f"the first layers have inputs of other widths: {widths}")
    return judge_embedding(map(relative_error, reference.layer(0), candidate.layer(0)), limits.embedding)


def _layers(inputs: Trace, replay: Replay, limits: Limits) -> Iterator[Step]:
    header = inputs.header
    if len(header.layers) < 2:
        yield skipped("layers", f"{header.runtime} shows no layers")
        yield skipped("head", f"{header.runtime} shows no layers")
        return
    yield judge_layers("layers", replayed_layers(inputs, replay), limits)
    yield judge_layers("head", replayed_head(inputs, replay), limits, by="head")


def _shown_layers(candidate: Trace, reference: Trace, limits: Limits) -> Iterator[Step]:
    """Compare the layers that both sides show, each with the input that it had."""
    ours, theirs = candidate.header, reference.header
    reason = "neither side runs one layer alone"
    if len(ours.layers) < 2 or (ours.layers, ours.width) != (theirs.layers, theirs.width):
        yield skipped("layers", f"{reason}, and they do not show the same layers")
    else:
        rows = (
            LayerRow(
                layer=layer, name=name, error=relative_error(reference.layer(layer + 1), candidate.layer(layer + 1))
            )
            for layer, name in enumerate(ours.layers[1:])
        )
        yield judge_layers("layers", rows, limits, by="nmse")
    yield skipped("head", reason)


def replayed_layers(inputs: Trace, replay: Replay) -> Iterator[LayerRow]:
    """Run each layer with the input that it had in the trace, and compare the output with that of the trace."""
    names = inputs.header.layers
    for layer in range(len(names) - 1):
        output = replay(layer, inputs.layer(layer))
        yield LayerRow(layer=layer, name=names[layer + 1], error=relative_error(inputs.layer(layer + 1), output))


def replayed_head(inputs: Trace, replay: Replay) -> Iterator[LayerRow]:
    """Run the head with the last layer's output of the trace, and compare the logits with those of the trace."""
    last = len(inputs.header.layers) - 1
    output = replay(last, inputs.layer(last))
    errors = [relative_error(row, output[pos]) for pos, row in enumerate(inputs.logits())]
    yield LayerRow(layer=last, name="head", error=max(errors))


def _logits(candidate: Trace, reference: Trace, limits: Limits) -> Step:
    ours, theirs = candidate.header, reference.header
    if theirs.has_top and ours.has_top:
        return skipped("logits", "both sides tell only their most probable tokens")
    if not (ours.has_top or theirs.has_top) and ours.n_vocab != theirs.n_vocab:
        return failed("logits", f"vocabularies differ: reference {theirs.n_vocab}, candidate {ours.n_vocab}")
    return judge_positions("logits", _position_rows(candidate, reference), limits)


def _position_rows(candidate: Trace, reference: Trace) -> Iterator[PositionRow]:
    if candidate.header.has_top or reference.header.has_top:
        full, partial = (reference, candidate) if candidate.header.has_top else (candidate, reference)
        for pos, (row, top) in enumerate(zip(full.logits(), partial.top(), strict=True)):
            yield compare_top(pos, row, top)
        return
    comparison = LogitsComparison(reference.header.n_vocab)
    for pos, (row, ours) in enumerate(zip(reference.logits(), candidate.logits(), strict=True)):
        yield comparison.row(pos, row, ours)


def _decode(candidate: Trace, reference: Trace, limits: Limits) -> Step:
    if not (candidate.header.has_decode and reference.header.has_decode):
        return skipped("decode", "a side was not asked to decode one by one")
    if candidate.header.n_vocab != reference.header.n_vocab:
        return skipped("decode", "vocabularies differ")
    comparison = LogitsComparison(reference.header.n_vocab)
    pairs = zip(reference.decoded(), candidate.decoded(), strict=True)
    rows = (comparison.row(pos, row, ours) for (pos, row), (_, ours) in pairs)
    return judge_positions("decode", rows, limits)
