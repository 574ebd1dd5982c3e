"""A model without numbers, written like transformers' own code, so that it holds what that one holds.

Local names live as long here as there: they decide when a tensor is freed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from stoker.core.frozen import frozen
from stoker.devices.estimate.model_shapes import Linear, Norm, Wiring
from stoker.devices.estimate.operations import (
    FLOAT,
    add,
    by_head,
    cast,
    computed_again,
    cross_entropy,
    cut,
    dropout,
    elementwise,
    embed,
    join,
    layer_norm,
    mean_of_rows,
    multiply,
    product,
    slices,
    square,
)
from stoker.devices.estimate.tape import CachingAllocator, Leaf, Purpose, Storage, SymbolicTensor, Tape, TapeMemory
from stoker.devices.estimate.training_setup import Attention, Optimiser, TrainingSpec, targeted

# The weights of a model without numbers, and what a linear layer with an adapter does with its input.


class Matrix:
    """One linear layer with its weights, and its adapter if it has one."""

    def __init__(self, tape: Tape, linear: Linear, training: TrainingSpec) -> None:
        self._tape = tape
        self._outputs = linear.outputs
        self._training = training
        self._inputs = linear.inputs
        width, trains = training.dtype.bytes, not training.is_lora
        self.weight = weight(tape, linear.inputs * linear.outputs, width, trains=trains)
        self.bias = weight(tape, linear.outputs, width, trains=trains) if linear.has_bias else None
        self.a: SymbolicTensor | None = None
        self.b: SymbolicTensor | None = None

    def adapt(self) -> None:
        """Give it an adapter."""
        rank, width = self._training.rank, self._training.adapter_dtype.bytes
        self.a = weight(self._tape, self._inputs * rank, width, purpose=Purpose.ADAPTERS)
        self.b = weight(self._tape, rank * self._outputs, width, purpose=Purpose.ADAPTERS)

    def __call__(self, x: SymbolicTensor) -> SymbolicTensor:
        tape = self._tape
        result = product(tape, x, self.weight, self._outputs, self.bias)
        if self.a is None or self.b is None:
            return result
        width = result.width
        x = cast(tape, x, self.a.width)
        small = product(tape, dropout(tape, x, self._training.dropout), self.a, self._training.rank)
        result = add(tape, result, elementwise(tape, product(tape, small, self.b, self._outputs)))
        return cast(tape, result, width)


class SymbolicBlock:
    """One layer's weights."""

    def __init__(self, tape: Tape, training: TrainingSpec) -> None:
        shape = training.shape
        self.matrices = {one.name: Matrix(tape, one, training) for one in shape.linears}
        width, trains = training.dtype.bytes, not training.is_lora
        count = 2 if shape.norm is Norm.LAYER else 1
        self.norms = [[weight(tape, shape.hidden, width, trains=trains) for _ in range(count)] for _ in range(2)]
        self.head_norms = [
            [weight(tape, shape.head_dim, width, trains=trains)] for _ in range(2 if shape.has_head_norms else 0)
        ]


def weight(
    tape: Tape, elements: int, width: int, *, trains: bool = True, purpose: Purpose = Purpose.WEIGHTS
) -> SymbolicTensor:
    """Make a weight; a trained one collects its gradient."""
    keeps = Purpose.ADAPTERS if purpose is Purpose.ADAPTERS else Purpose.GRADIENTS
    return SymbolicTensor(tape.fresh(elements * width, purpose), elements, width, Leaf(keeps) if trains else None)


# Attention as torch and transformers compute it: in one kernel that never holds the scores, or with all of them.

_ALIGNED_BYTES = 256


def fused_attention(
    tape: Tape,
    qkv: tuple[SymbolicTensor, SymbolicTensor, SymbolicTensor],
    *,
    heads: int,
    rows: int,
    mask_elements: int = 0,
) -> SymbolicTensor:
    """Attend without ever holding the scores: the inputs, the result and a number per row and head are kept.

    With a mask, keys and values are repeated for every head first, and the mask itself is kept.
    """
    q, k, v = qkv
    if tape.autocast_width:
        v, k, q = (cast(tape, one, tape.autocast_width) for one in (v, k, q))
    mask: tuple[Storage, ...] = ()
    if mask_elements:
        k, v = (_laid_out(tape, one, q.elements, is_single=True) for one in (k, v))
        mask = (tape.fresh(mask_elements * q.width),)
    out = tape.fresh(q.size_bytes)
    sums = tape.fresh(heads * rows * FLOAT)
    kept = (q.storage, k.storage, v.storage, out, sums, *mask) if any(tape.wants(one) for one in (q, k, v)) else ()
    q_bytes, k_bytes, q_elements = q.size_bytes, k.size_bytes, q.elements

    def run(_grads: list[Storage | None], _kept: tuple[Storage, ...] = kept) -> Sequence[Storage]:
        made = [tape.viewed(q_bytes), tape.viewed(k_bytes), tape.viewed(k_bytes)]
        # One workspace: sums in 32 bits, and where heads share keys, gradients for every head.
        shared_bytes = 2 * q_bytes if k_bytes != q_bytes else 0
        _workspace = tape.fresh(q_elements * FLOAT + heads * rows * FLOAT + shared_bytes + _ALIGNED_BYTES)
        return made

    return tape.result(out, q.elements, q.width, (q, k, v), run)


def score_attention(  # noqa: PLR0913 - the arguments of a kernel
    tape: Tape,
    qkv: tuple[SymbolicTensor, SymbolicTensor, SymbolicTensor],
    *,
    scores: int,
    mask: SymbolicTensor | None,
    share: float,
    is_wide: bool,
    is_single: bool,
) -> SymbolicTensor:
    """Attend by holding all scores, as `eager` does: in the tensors' width, and once as 32-bit floats if `is_wide`."""
    q, k, v = (cast(tape, one, tape.autocast_width) for one in qkv) if tape.autocast_width else qkv
    q, k, v = (_laid_out(tape, one, q.elements, is_single=is_single) for one in (q, k, v))
    raw = _matched(tape, (q, k), scores, q.width)
    scaled = elementwise(tape, raw)
    del raw
    if mask is not None:
        scaled = add(tape, scaled, mask)
    soft = elementwise(tape, _widened(scaled) if is_wide else scaled, keeps_result=True)
    del scaled
    narrow = dropout(tape, cast(tape, soft, q.width), share)
    return copied(tape, _matched(tape, (narrow, v), q.elements, q.width))


def _widened(x: SymbolicTensor) -> SymbolicTensor:
    """Softmax reads one width and writes another, without a copy in between."""
    return SymbolicTensor(x.storage, x.elements, FLOAT, x.node, x.slot)


def copied(tape: Tape, x: SymbolicTensor) -> SymbolicTensor:
    """Copy a tensor into another layout."""
    size_bytes = x.size_bytes
    return tape.result(tape.fresh(size_bytes), x.elements, x.width, (x,), lambda grads: grads)


def _laid_out(tape: Tape, x: SymbolicTensor, elements: int, *, is_single: bool) -> SymbolicTensor:
    """Return keys for every head, and no view of something larger: a batch of products takes neither."""
    if x.elements == elements and (is_single or x.storage.size_bytes == x.size_bytes):
        return x
    size_bytes = x.size_bytes
    return tape.result(tape.fresh(elements * x.width), elements, x.width, (x,), lambda _: (tape.fresh(size_bytes),))


def _matched(tape: Tape, pair: tuple[SymbolicTensor, SymbolicTensor], elements: int, width: int) -> SymbolicTensor:
    """Multiply two batches of matrices, both of which may need gradients."""
    a, b = pair
    out = tape.fresh(elements * width)
    kept = (a.storage, b.storage) if any(tape.wants(one) for one in pair) else ()
    sizes = (a.size_bytes, b.size_bytes)

    def run(_grads: list[Storage | None], _kept: tuple[Storage, ...] = kept) -> Sequence[Storage]:
        return [tape.fresh(size_bytes) for size_bytes in sizes]

    return tape.result(out, elements, width, pair, run)


_ONE_KERNEL = ("silu", "gelu", "gelu_pytorch_tanh")
_MOST_CHUNKS = 64
"""More of them hold no more."""


class SymbolicModel:
    """The whole model."""

    def __init__(self, tape: Tape, training: TrainingSpec) -> None:
        shape = training.shape
        self._tape = tape
        self._shape = shape
        self._training = training
        self._rows = training.tokens
        width, trains = training.dtype.bytes, not training.is_lora
        self._table = weight(tape, shape.vocabulary * shape.hidden, width, trains=trains)
        self._places = weight(tape, shape.positions * shape.hidden, width, trains=trains) if shape.positions else None
        self._blocks = [SymbolicBlock(tape, training) for _ in range(shape.layers)]
        count = 2 if shape.norm is Norm.LAYER else 1
        self._last_norm = [weight(tape, shape.hidden, width, trains=trains) for _ in range(count)]
        self._head = (
            self._table if shape.is_tied else weight(tape, shape.vocabulary * shape.hidden, width, trains=trains)
        )
        if training.is_lora:
            names = {one.name for one in targeted(shape, training.targets)}
            for block in self._blocks:
                for name, matrix in block.matrices.items():
                    if name in names:
                        matrix.adapt()

    def leaves(self) -> list[Leaf]:
        """Return the leaves that collect the gradients of trained weights."""
        tensors = [self._table, *([self._places] if self._places else [])]
        for block in self._blocks:
            for matrix in block.matrices.values():
                tensors += [one for one in (matrix.weight, matrix.bias, matrix.a, matrix.b) if one is not None]
            tensors += [one for norm in (*block.norms, *block.head_norms) for one in norm]
        tensors += [*self._last_norm, self._head]
        nodes = {id(one.node): one.node for one in tensors if isinstance(one.node, Leaf)}
        return list(nodes.values())

    def loss(self, ids: Storage) -> tuple[SymbolicTensor, SymbolicTensor | None]:
        """Run forward; return the loss and the logits, if there were any of all tokens at once."""
        tape, training = self._tape, self._training
        hidden = self._hidden(ids)
        if training.loss_chunk:
            return self._loss_in_chunks(hidden), None
        logits = product(tape, hidden, self._head, self._shape.vocabulary, purpose=Purpose.LOGITS)
        return self._loss_of(logits), logits

    def _loss_of(self, logits: SymbolicTensor) -> SymbolicTensor:
        wide = cast(self._tape, logits, FLOAT, Purpose.LOGITS)
        return cross_entropy(self._tape, wide, logits.elements // self._shape.vocabulary)

    def _loss_in_chunks(self, hidden: SymbolicTensor) -> SymbolicTensor:
        tape, chunk = self._tape, min(self._training.loss_chunk, self._rows)
        count = min(-(-self._rows // chunk), _MOST_CHUNKS)
        parts = cut(tape, hidden, [chunk * self._shape.hidden] * count)
        return join(tape, [computed_again(tape, self._chunk_loss, part) for part in parts])

    def _chunk_loss(self, part: SymbolicTensor) -> SymbolicTensor:
        return self._loss_of(product(self._tape, part, self._head, self._shape.vocabulary, purpose=Purpose.LOGITS))

    def _hidden(self, ids: Storage) -> SymbolicTensor:
        tape, shape, training = self._tape, self._shape, self._training
        inputs = embed(tape, ids, self._table, shape.hidden, self._rows)
        if training.is_lora and training.checkpointing:
            # As `enable_input_require_grads` does, without which a block would not be recomputed.
            inputs.node = Leaf()
        hidden = inputs
        if self._places is not None:
            places = embed(tape, ids, self._places, shape.hidden, training.sequence)
            hidden = add(tape, inputs, places)
            del places
        hidden = dropout(tape, hidden, shape.embedding_dropout)
        angles = self._angles(hidden.width)
        mask = self._mask(hidden.width)
        for block in self._blocks:
            run = partial(self._block, block, angles, mask)
            hidden = computed_again(tape, run, hidden) if training.checkpointing else run(hidden)
        return self._normalised(hidden, self._last_norm, self._rows)

    def _angles(self, width: int) -> tuple[SymbolicTensor, SymbolicTensor] | None:
        if not self._shape.rotary_dim:
            return None
        elements = self._training.sequence * self._shape.rotary_dim
        # A product gives the angles.
        self._tape.multiplies()
        cos, sin = (SymbolicTensor(self._tape.fresh(elements * width), elements, width) for _ in range(2))
        return cos, sin

    def _mask(self, width: int) -> SymbolicTensor | None:
        training = self._training
        if training.attention is not Attention.EAGER and not training.padded:
            return None
        elements = training.batch * training.sequence**2
        width = width if training.attention is Attention.EAGER else 1
        return SymbolicTensor(self._tape.fresh(elements * width), elements, width)

    def _block(
        self,
        block: SymbolicBlock,
        angles: tuple[SymbolicTensor, SymbolicTensor] | None,
        mask: SymbolicTensor | None,
        hidden: SymbolicTensor,
    ) -> SymbolicTensor:
        tape, shape = self._tape, self._shape
        residual = hidden
        hidden = self._normalised(hidden, block.norms[0], self._rows)
        hidden = self._attended(block, angles, mask, hidden)
        hidden = dropout(tape, hidden, shape.residual_dropout)
        if not shape.is_sequential:
            inner = self._mlp(block, self._normalised(residual, block.norms[1], self._rows))
            inner = dropout(tape, inner, shape.residual_dropout)
            return add(tape, add(tape, inner, hidden), residual)
        hidden = add(tape, residual, hidden)
        residual = hidden
        hidden = self._normalised(hidden, block.norms[1], self._rows)
        hidden = self._mlp(block, hidden)
        hidden = dropout(tape, hidden, shape.residual_dropout)
        return add(tape, residual, hidden)

    def _normalised(self, x: SymbolicTensor, weights: list[SymbolicTensor], rows: int) -> SymbolicTensor:
        tape, norm = self._tape, self._shape.norm
        if norm is Norm.LAYER:
            return layer_norm(tape, x, weights[0], weights[1], rows)
        width = x.width
        x = cast(tape, x, FLOAT)
        variance = mean_of_rows(tape, square(tape, x), rows)
        x = multiply(tape, x, elementwise(tape, elementwise(tape, variance), keeps_result=True))
        if norm is Norm.RMS_FLOAT:
            scale = elementwise(tape, cast(tape, weights[0], FLOAT))
            return cast(tape, multiply(tape, x, scale), width)
        return multiply(tape, weights[0], cast(tape, x, width))

    def _attended(
        self,
        block: SymbolicBlock,
        angles: tuple[SymbolicTensor, SymbolicTensor] | None,
        mask: SymbolicTensor | None,
        x: SymbolicTensor,
    ) -> SymbolicTensor:
        q, k, v = self._queries(block, x)
        if angles is not None:
            q, k = self._turned(q, k, *angles)
        names = {Wiring.PLAIN: "c_proj", Wiring.PARALLEL: "dense"}
        out = block.matrices[names.get(self._shape.wiring, "o_proj")]
        return out(self._scored(q, k, v, mask))

    def _queries(self, block: SymbolicBlock, x: SymbolicTensor) -> list[SymbolicTensor]:
        tape, shape, matrices = self._tape, self._shape, block.matrices
        if shape.wiring is Wiring.SEPARATE:
            q, k = (self._per_head(block, by_head(tape, matrices[name](x)), name) for name in ("q_proj", "k_proj"))
            return [q, k, matrices["v_proj"](x)]
        parts = [self._rows * width for width in (shape.q_width, shape.kv_width, shape.kv_width)]
        names = {Wiring.FUSED: "qkv_proj", Wiring.PLAIN: "c_attn", Wiring.PARALLEL: "query_key_value"}
        whole = matrices[names[shape.wiring]](x)
        if shape.wiring is Wiring.PARALLEL:
            whole = by_head(tape, whole)
        return slices(tape, whole, parts) if shape.wiring is Wiring.FUSED else cut(tape, whole, parts)

    def _per_head(self, block: SymbolicBlock, x: SymbolicTensor, name: str) -> SymbolicTensor:
        if not block.head_norms:
            return x
        place = ("q_proj", "k_proj").index(name)
        return self._normalised(x, block.head_norms[place], x.elements // self._shape.head_dim)

    def _turned(
        self, q: SymbolicTensor, k: SymbolicTensor, cos: SymbolicTensor, sin: SymbolicTensor
    ) -> tuple[SymbolicTensor, SymbolicTensor]:
        if self._shape.wiring is Wiring.SEPARATE:
            return self._rotated(q, cos, sin), self._rotated(k, cos, sin)
        (q, q_rest), (k, k_rest) = self._heads_cut(q), self._heads_cut(k)
        if self._shape.wiring is Wiring.FUSED:
            q = join(self._tape, (self._rotated(q, cos, sin), q_rest))
            return q, join(self._tape, (self._rotated(k, cos, sin), k_rest))
        q, k = self._rotated(q, cos, sin), self._rotated(k, cos, sin)
        q = join(self._tape, (q, q_rest))
        return q, join(self._tape, (k, k_rest))

    def _heads_cut(self, x: SymbolicTensor) -> list[SymbolicTensor]:
        """Cut the rotated part of each head from the rest."""
        share = x.elements * self._shape.rotary_dim // self._shape.head_dim
        return slices(self._tape, x, (share, x.elements - share))

    def _rotated(self, x: SymbolicTensor, cos: SymbolicTensor, sin: SymbolicTensor) -> SymbolicTensor:
        tape = self._tape
        return add(tape, multiply(tape, x, cos), multiply(tape, self._half_turned(x), sin))

    def _half_turned(self, x: SymbolicTensor) -> SymbolicTensor:
        first, second = slices(self._tape, x, (x.elements // 2, x.elements // 2))
        return join(self._tape, (elementwise(self._tape, second), first))

    def _scored(
        self, q: SymbolicTensor, k: SymbolicTensor, v: SymbolicTensor, mask: SymbolicTensor | None
    ) -> SymbolicTensor:
        tape, shape, training = self._tape, self._shape, self._training
        # No kernel that holds no scores takes 32-bit floats where heads share keys.
        is_plain = q.width == FLOAT and not tape.autocast_width and shape.kv_heads != shape.heads
        if training.attention is Attention.EAGER or is_plain:
            scores = shape.heads * training.batch * training.sequence**2
            return score_attention(
                tape,
                (q, k, v),
                scores=scores,
                mask=mask,
                share=shape.attention_dropout,
                is_wide=shape.wiring is not Wiring.PLAIN,
                is_single=training.batch == 1,
            )
        mask_elements = training.batch * training.sequence**2 if training.padded else 0
        out = fused_attention(tape, (q, k, v), heads=shape.heads, rows=self._rows, mask_elements=mask_elements)
        # Queries that were concatenated are stored head by head, and so is what one of the kernels makes from them.
        is_by_head = out.width != FLOAT and shape.wiring in (Wiring.FUSED, Wiring.PARALLEL)
        return copied(tape, out) if is_by_head else out

    def _mlp(self, block: SymbolicBlock, x: SymbolicTensor) -> SymbolicTensor:
        tape, shape, matrices = self._tape, self._shape, block.matrices
        if shape.wiring is Wiring.SEPARATE:
            return matrices["down_proj"](
                multiply(tape, self._activated(matrices["gate_proj"](x)), matrices["up_proj"](x))
            )
        if shape.wiring is Wiring.FUSED:
            both = matrices["gate_up_proj"](x)
            gate, up = cut(tape, both, (both.elements // 2, both.elements // 2))
            return matrices["down_proj"](multiply(tape, up, self._activated(gate)))
        names = ("c_fc", "c_proj_mlp") if shape.wiring is Wiring.PLAIN else ("dense_h_to_4h", "dense_4h_to_h")
        return matrices[names[1]](self._activated(matrices[names[0]](x)))

    def _activated(self, x: SymbolicTensor) -> SymbolicTensor:
        tape, name = self._tape, self._shape.activation
        if name in _ONE_KERNEL:
            return elementwise(tape, x, keeps_input=True)
        if name == "relu":
            return elementwise(tape, x, keeps_result=True)
        # `gelu_new` and others that are written out: half the input, its cube, tanh of their sum, one more.
        half = elementwise(tape, x)
        wide = cast(tape, x, FLOAT) if tape.autocast_width else x
        cube = elementwise(tape, elementwise(tape, wide, keeps_input=True))
        curve = elementwise(tape, elementwise(tape, add(tape, x, cube)), keeps_result=True)
        return multiply(tape, half, elementwise(tape, curve))


# A few steps of a training without a device and without numbers: what would be held, and where its peak is.

_STEPS = 3
"""From the second step on the optimiser's states lie among what the first one left; nothing changes after the third."""
_PASSES = 2
"""With gradients of a pass before it, each is like the second."""
_STATES = {
    Optimiser.ADAMW: 2,
    Optimiser.ADAMW_FUSED: 2,
    Optimiser.ADAMW_8BIT: 2,
    Optimiser.ADAFACTOR: 0,
    Optimiser.SGD: 0,
    Optimiser.SGD_MOMENTUM: 1,
}
_COPIES = 2
"""Of the weight that Adafactor steps: the variance of its gradient, and its update."""


@frozen
class MemoryTrace:
    """What a training would hold."""

    held_bytes: Mapping[Purpose, int]
    """At the peak, by purpose."""
    reserved_bytes: int
    """What the allocator would have taken of the device by then."""
    fullest: str
    """The phase of the peak: `forward`, `backward` or `step`."""

    @property
    def allocated_bytes(self) -> int:
        return sum(self.held_bytes.values())


def rehearse(training: TrainingSpec, *, steps: int = _STEPS) -> MemoryTrace:
    """Simulate some steps."""
    memory = TapeMemory(CachingAllocator(is_expandable=training.expandable_segments))
    stage = _Stage(training, memory)
    for _ in range(steps):
        stage.step()
    return MemoryTrace(
        held_bytes=dict(zip(Purpose, memory.at_most, strict=True)),
        reserved_bytes=memory.allocator.reserved_bytes,
        fullest=memory.fullest,
    )


class _Stage:
    """A model, its optimiser and what they have made so far."""

    def __init__(self, training: TrainingSpec, memory: TapeMemory) -> None:
        self._training = training
        self._memory = memory
        self._tape = Tape(memory)
        self._model = SymbolicModel(self._tape, training)
        self._leaves = self._model.leaves()
        self._states: list[Storage] = []

    def step(self) -> None:
        held: list[object] = []
        for _ in range(min(self._training.accumulation, _PASSES)):
            held = self._pass()
        self._memory.during = "step"
        self._update()
        for leaf in self._leaves:
            leaf.gradient = None
        held.clear()

    def _pass(self) -> list[object]:
        """Run forward and backward; return what the program still holds then."""
        training, tape = self._training, self._tape
        self._memory.during = "forward"
        ids = tape.fresh(training.tokens * 8)
        tape.autocast_width = training.autocast.bytes if training.autocast else 0
        loss, logits = self._model.loss(ids)
        tape.forget_casts()
        tape.autocast_width = 0
        if not training.keeps_outputs:
            logits = None
        self._memory.during = "backward"
        if loss.node is not None:
            tape.backward(loss.node, [tape.fresh(loss.size_bytes)])
        return [ids, loss, logits]

    def _update(self) -> None:
        optimiser = self._training.optimiser
        held = [leaf for leaf in self._leaves if leaf.gradient is not None]
        if not self._states:
            for leaf in held:
                self._states += [self._state(leaf) for _ in range(_STATES[optimiser])]
        if optimiser is Optimiser.ADAMW:
            _roots = [self._state(leaf) for leaf in held]
        if optimiser is Optimiser.ADAFACTOR:
            _largest = [self._state(max(held, key=_gradient_bytes)) for _ in range(_COPIES)]

    def _state(self, leaf: Leaf) -> Storage:
        size_bytes = _gradient_bytes(leaf)
        if self._training.optimiser is Optimiser.ADAMW_8BIT:
            size_bytes //= self._training.trained_width.bytes
        purpose = Purpose.ADAPTERS if leaf.keeps is Purpose.ADAPTERS else Purpose.OPTIMISER
        return self._tape.fresh(size_bytes, purpose)


def _gradient_bytes(leaf: Leaf) -> int:
    return leaf.gradient.size_bytes if leaf.gradient is not None else 0
