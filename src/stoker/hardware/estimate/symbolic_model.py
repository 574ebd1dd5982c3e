"""A model without numbers, written as transformers writes its own, so that it holds what that one holds.

Local names live as long here as there: that is what keeps or frees a tensor.
"""

from __future__ import annotations

from functools import partial

from stoker.hardware.estimate.attention import copied, fused_attention, score_attention
from stoker.hardware.estimate.operations import (
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
from stoker.hardware.estimate.shape import Norm, Wiring
from stoker.hardware.estimate.symbolic_weights import Block, weight
from stoker.hardware.estimate.tape import Leaf, Purpose, Storage, Tape, Tensor
from stoker.hardware.estimate.targets import targeted
from stoker.hardware.estimate.training import Attention, Training

_ONE_KERNEL = ("silu", "gelu", "gelu_pytorch_tanh")
_MOST_CHUNKS = 64
"""More of them hold no more."""


class SymbolicModel:
    """The whole model."""

    def __init__(self, tape: Tape, training: Training) -> None:
        shape = training.shape
        self._tape = tape
        self._shape = shape
        self._training = training
        self._rows = training.tokens
        width, trains = training.dtype.bytes, not training.is_lora
        self._table = weight(tape, shape.vocabulary * shape.hidden, width, trains=trains)
        self._places = weight(tape, shape.positions * shape.hidden, width, trains=trains) if shape.positions else None
        self._blocks = [Block(tape, training) for _ in range(shape.layers)]
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
        """Give where trained weights collect their gradients."""
        tensors = [self._table, *([self._places] if self._places else [])]
        for block in self._blocks:
            for matrix in block.matrices.values():
                tensors += [one for one in (matrix.weight, matrix.bias, matrix.a, matrix.b) if one is not None]
            tensors += [one for norm in (*block.norms, *block.head_norms) for one in norm]
        tensors += [*self._last_norm, self._head]
        nodes = {id(one.node): one.node for one in tensors if isinstance(one.node, Leaf)}
        return list(nodes.values())

    def loss(self, ids: Storage) -> tuple[Tensor, Tensor | None]:
        """Run forward; give the loss and the logits, if there were any of all tokens at once."""
        tape, training = self._tape, self._training
        hidden = self._hidden(ids)
        if training.loss_chunk:
            return self._loss_in_chunks(hidden), None
        logits = product(tape, hidden, self._head, self._shape.vocabulary, purpose=Purpose.LOGITS)
        return self._loss_of(logits), logits

    def _loss_of(self, logits: Tensor) -> Tensor:
        wide = cast(self._tape, logits, FLOAT, Purpose.LOGITS)
        return cross_entropy(self._tape, wide, logits.elements // self._shape.vocabulary)

    def _loss_in_chunks(self, hidden: Tensor) -> Tensor:
        tape, chunk = self._tape, min(self._training.loss_chunk, self._rows)
        count = min(-(-self._rows // chunk), _MOST_CHUNKS)
        parts = cut(tape, hidden, [chunk * self._shape.hidden] * count)
        return join(tape, [computed_again(tape, self._chunk_loss, part) for part in parts])

    def _chunk_loss(self, part: Tensor) -> Tensor:
        return self._loss_of(product(self._tape, part, self._head, self._shape.vocabulary, purpose=Purpose.LOGITS))

    def _hidden(self, ids: Storage) -> Tensor:
        tape, shape, training = self._tape, self._shape, self._training
        inputs = embed(tape, ids, self._table, shape.hidden, self._rows)
        if training.is_lora and training.checkpointing:
            # As `enable_input_require_grads` does, without which a block would not be computed again.
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

    def _angles(self, width: int) -> tuple[Tensor, Tensor] | None:
        if not self._shape.rotary_dim:
            return None
        elements = self._training.sequence * self._shape.rotary_dim
        # A product gives the angles.
        self._tape.multiplies()
        cos, sin = (Tensor(self._tape.fresh(elements * width), elements, width) for _ in range(2))
        return cos, sin

    def _mask(self, width: int) -> Tensor | None:
        training = self._training
        if training.attention is not Attention.EAGER and not training.padded:
            return None
        elements = training.batch * training.sequence**2
        width = width if training.attention is Attention.EAGER else 1
        return Tensor(self._tape.fresh(elements * width), elements, width)

    def _block(self, block: Block, angles: tuple[Tensor, Tensor] | None, mask: Tensor | None, hidden: Tensor) -> Tensor:
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

    def _normalised(self, x: Tensor, weights: list[Tensor], rows: int) -> Tensor:
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

    def _attended(self, block: Block, angles: tuple[Tensor, Tensor] | None, mask: Tensor | None, x: Tensor) -> Tensor:
        q, k, v = self._queries(block, x)
        if angles is not None:
            q, k = self._turned(q, k, *angles)
        names = {Wiring.PLAIN: "c_proj", Wiring.PARALLEL: "dense"}
        out = block.matrices[names.get(self._shape.wiring, "o_proj")]
        return out(self._scored(q, k, v, mask))

    def _queries(self, block: Block, x: Tensor) -> list[Tensor]:
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

    def _per_head(self, block: Block, x: Tensor, name: str) -> Tensor:
        if not block.head_norms:
            return x
        place = ("q_proj", "k_proj").index(name)
        return self._normalised(x, block.head_norms[place], x.elements // self._shape.head_dim)

    def _turned(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        if self._shape.wiring is Wiring.SEPARATE:
            return self._rotated(q, cos, sin), self._rotated(k, cos, sin)
        (q, q_rest), (k, k_rest) = self._heads_cut(q), self._heads_cut(k)
        if self._shape.wiring is Wiring.FUSED:
            q = join(self._tape, (self._rotated(q, cos, sin), q_rest))
            return q, join(self._tape, (self._rotated(k, cos, sin), k_rest))
        q, k = self._rotated(q, cos, sin), self._rotated(k, cos, sin)
        q = join(self._tape, (q, q_rest))
        return q, join(self._tape, (k, k_rest))

    def _heads_cut(self, x: Tensor) -> list[Tensor]:
        """Cut what is rotated of each head from what is not."""
        share = x.elements * self._shape.rotary_dim // self._shape.head_dim
        return slices(self._tape, x, (share, x.elements - share))

    def _rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        tape = self._tape
        return add(tape, multiply(tape, x, cos), multiply(tape, self._half_turned(x), sin))

    def _half_turned(self, x: Tensor) -> Tensor:
        first, second = slices(self._tape, x, (x.elements // 2, x.elements // 2))
        return join(self._tape, (elementwise(self._tape, second), first))

    def _scored(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
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
        # Queries that were put together anew lie head by head, and so does what one of the kernels makes from them.
        is_by_head = out.width != FLOAT and shape.wiring in (Wiring.FUSED, Wiring.PARALLEL)
        return copied(tape, out) if is_by_head else out

    def _mlp(self, block: Block, x: Tensor) -> Tensor:
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

    def _activated(self, x: Tensor) -> Tensor:
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
