"""Compare two traces over the ladder: tokens, embedding, layers by replay, head, logits of one pass and of a decode.

A side that can be asked for one layer alone replays the layers of the other: each gets the input that the other side's
layer had, and its output is compared with what the other side made of it. Outputs are found by their names; a layer
whose input or output is not shown is left out, and the step says so. Files and weights are compared before, by
`tensor_files`; their steps are passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.core.errors import StageInputError
from stoker.core.frozen import changed
from stoker.core.text import some_of
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
from stoker.crossval.trace import Trace, TraceHeader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stoker.crossval.plugin_process import Plugin

    Replay = Callable[[int, NDArray[Any]], NDArray[Any]]

EMBEDDING = "embd"
"""The name of the first layer's input."""
_OUTPUT = "l_out-"
"""The beginning of the name of a layer's output; its number follows."""
_SHOWN = 4


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
    inputs, replayer = (reference, candidate) if is_replayed_by_candidate else (candidate, reference)
    tokens = _tokens(candidate, reference)
    if not _have_same_ids(candidate, reference, tokens):
        reason = "the sides got different token ids"
        return judge([*before, tokens, *(skipped(name, reason) for name in STEPS[STEPS.index("tokens") + 1 :])], limits)
    steps = [
        *before,
        tokens,
        _embedding(candidate, reference, limits),
        *(_layers(inputs, replay, replayer.header, limits) if replay else _shown_layers(candidate, reference, limits)),
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
        if EMBEDDING not in one.header.layers:
            return skipped("embedding", f"the {side} does not show the input of its first layer")
    if candidate.header.width != reference.header.width:
        widths = f"reference {reference.header.width}, candidate {candidate.header.width}"
        return failed("embedding", f"the first layers have inputs of other widths: {widths}")
    errors = map(relative_error, reference.output(EMBEDDING), candidate.output(EMBEDDING))
    return judge_embedding(errors, limits.embedding)


def _layers(inputs: Trace, replay: Replay, replayer: TraceHeader, limits: Limits) -> Iterator[Step]:
    header, count = inputs.header, replayer.n_layers
    has_same_width = not replayer.width or replayer.width == header.width
    if header.layers and not has_same_width:
        reason = f"{header.runtime} shows layers of width {header.width}, not {replayer.width}"
        yield from (skipped(name, reason) for name in ("layers", "head"))
        return
    shown = [layer for layer in range(count) if {_input_of(layer), _output_of(layer)} <= set(header.layers)]
    reason = _left_out(header, {*range(count), *_outputs(header)}, shown)
    if shown:
        step = judge_layers("layers", replayed_layers(inputs, replay, shown), limits)
        yield changed(step, reason=step.reason or reason)
    else:
        yield skipped("layers", reason)
    if max(_outputs(header), default=-1) != count - 1:
        yield skipped("head", reason or f"{header.runtime} shows no layers")
    elif header.has_top or header.n_vocab != replayer.n_vocab:
        yield skipped("head", f"{header.runtime} does not return logits of {replayer.n_vocab} tokens")
    else:
        yield judge_layers("head", replayed_head(inputs, replay, count), limits, by="head")


def _shown_layers(candidate: Trace, reference: Trace, limits: Limits) -> Iterator[Step]:
    """Compare the layers that both sides show, each with the input that it had."""
    ours, theirs = candidate.header, reference.header
    both = sorted(_outputs(ours) & _outputs(theirs))
    reason = "neither side runs one layer alone"
    if not both or ours.width != theirs.width:
        yield skipped("layers", f"{reason}, and they do not show the same layers")
    else:
        rows = (
            LayerRow(layer=layer, name=name, error=relative_error(reference.output(name), candidate.output(name)))
            for layer, name in ((layer, _output_of(layer)) for layer in both)
        )
        step = judge_layers("layers", rows, limits, by="nmse")
        every = _outputs(ours) | _outputs(theirs)
        left = next(filter(None, (_left_out(one, every, _outputs(one)) for one in (ours, theirs))), "")
        yield changed(step, reason=step.reason or left)
    yield skipped("head", reason)


def _left_out(header: TraceHeader, layers: Collection[int], compared: Collection[int]) -> str:
    """Return which layers are not compared, and what is shown instead; empty if all are."""
    if not header.layers:
        return f"{header.runtime} shows no layers"
    missing = [str(layer) for layer in sorted(layers) if layer not in compared]
    if not missing:
        return ""
    numbers = f"{'layer' if len(missing) == 1 else 'layers'} {some_of(missing, _SHOWN)}"
    return f"{numbers} not compared: {header.runtime} shows {some_of(header.layers, _SHOWN)}"


def _outputs(header: TraceHeader) -> set[int]:
    """Return the numbers of the layers whose outputs are shown."""
    numbers = (name.removeprefix(_OUTPUT) for name in header.layers if name.startswith(_OUTPUT))
    return {int(one) for one in numbers if one.isascii() and one.isdecimal() and one == str(int(one))}


def _input_of(layer: int) -> str:
    return _output_of(layer - 1) if layer else EMBEDDING


def _output_of(layer: int) -> str:
    return f"{_OUTPUT}{layer}"


def replayed_layers(inputs: Trace, replay: Replay, layers: Sequence[int]) -> Iterator[LayerRow]:
    """Run layers with the input that each had in the trace, and compare the output with that of the trace."""
    for layer in layers:
        name, made = _output_of(layer), replay(layer, inputs.output(_input_of(layer)))
        yield LayerRow(layer=layer, name=name, error=relative_error(inputs.output(name), made))


def replayed_head(inputs: Trace, replay: Replay, count: int) -> Iterator[LayerRow]:
    """Run the head with the last layer's output of the trace, and compare the logits with those of the trace."""
    output = replay(count, inputs.output(_output_of(count - 1)))
    errors = [relative_error(row, output[pos]) for pos, row in enumerate(inputs.logits())]
    yield LayerRow(layer=count, name="head", error=max(errors))


def _logits(candidate: Trace, reference: Trace, limits: Limits) -> Step:
    ours, theirs = candidate.header, reference.header
    if theirs.has_top and ours.has_top:
        return skipped("logits", "both sides tell only their most probable tokens")
    if not (ours.has_top or theirs.has_top) and ours.n_vocab != theirs.n_vocab:
        return failed("logits", f"vocabularies differ: reference {theirs.n_vocab}, candidate {ours.n_vocab}")
    return judge_positions("logits", _position_rows(candidate, reference), limits)


def _position_rows(candidate: Trace, reference: Trace) -> Iterator[PositionRow]:
    if candidate.header.has_top or reference.header.has_top:
        is_reference = reference.header.has_top
        full, partial = (candidate, reference) if is_reference else (reference, candidate)
        for pos, (row, top) in enumerate(zip(full.logits(), partial.top(), strict=True)):
            yield compare_top(pos, row, top, is_top_reference=is_reference)
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
