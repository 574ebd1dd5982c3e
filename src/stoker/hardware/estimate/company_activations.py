"""What the language cookbook's engine holds in one step, counted from its own forward and backward pass.

It keeps no graph of autograd's: of each block what came in, rotated queries, keys and values with what attention gave,
what the second half got, gate and up, and the narrow products of adapters. Norms and gates are computed again. Where
kernels are not compiled, what is done element by element makes copies of its own, mostly in 32 bits.
"""

from __future__ import annotations

from stoker.hardware.estimate.shape import ModelShape
from stoker.hardware.estimate.targets import targeted
from stoker.hardware.estimate.training import Width
from stoker.model.frozen import frozen

CHUNK_BYTES = 512 * 1024**2
"""Of the logits, in 32 bits, of the tokens whose losses are computed at a time."""
_FLOAT = 4
_INT = 8


@frozen
class Passing:
    """How one member's rows go through the base."""

    shape: ModelShape
    rank: int
    targets: tuple[str, ...]
    tokens: int
    sequence: int
    dtype: Width
    is_compiled: bool
    is_packed: bool = False
    has_flash: bool = True
    """Attention never holds its scores."""

    @property
    def width(self) -> int:
        return self.dtype.bytes

    def kept_bytes(self) -> int:
        """Give what all blocks keep until the backward pass, with what goes into the first and out of the last."""
        shape, qkv = self.shape, self.shape.q_width + 2 * self.shape.kv_width
        narrow = self.rank * len(targeted(shape, self.targets))
        kept = 2 * shape.hidden + qkv + shape.q_width + 2 * shape.inner + narrow
        if shape.has_head_norms:
            kept += qkv
        block = kept * self.width + self._attention_bytes()
        # The last block's result, its norm, and the gradient of that; angles of positions; ids and labels.
        ends = 3 * shape.hidden * self.width + shape.head_dim * _FLOAT + 2 * _INT
        return self.tokens * (shape.layers * block + ends)

    def _attention_bytes(self) -> int:
        """Give what attention keeps of one token in one block, beyond what went in and came out."""
        shape = self.shape
        if not self.has_flash:
            # Scores before and after softmax, keys and values for every head.
            return shape.heads * self.sequence * 2 * self.width + 2 * shape.q_width * self.width
        sums = shape.heads * _FLOAT
        return sums + (self._packed_bytes() if self.is_packed else 0)

    def _packed_bytes(self) -> int:
        if self.dtype is Width.FP32:
            # A mask of every row, as 32-bit floats.
            return self.sequence * _FLOAT
        # Keys and values for every head.
        return 2 * self.shape.q_width * self.width

    def working_bytes(self) -> int:
        """Give what one block's backward pass has beyond that, at its fullest."""
        return self.tokens * max(self._gate_bytes(), self._rest_bytes())

    def _gate_bytes(self) -> int:
        """While the gate is gone through backward: what comes from above, what it gave, and three results."""
        inner = self.shape.inner
        held = (self.shape.hidden + 4 * inner) * self.width
        if self.is_compiled:
            return held
        # In 32 bits: gate, up and the gradient (there already if the base is), sigma, silu, and products on their way.
        copies = 4 if self.dtype is Width.FP32 else 8
        return held + copies * inner * _FLOAT

    def _rest_bytes(self) -> int:
        """While attention is gone through backward."""
        shape, width = self.shape, self.width
        qkv = shape.q_width + 2 * shape.kv_width
        left = (4 * shape.hidden + shape.q_width) * width
        # Gradients of queries, keys and values, joined anew; the kernel's own sums in 32 bits, and keys for every head.
        attention = 2 * qkv * width + shape.q_width * _FLOAT + (2 * shape.q_width * width if self._has_groups else 0)
        if not self.has_flash:
            attention += 2 * shape.heads * self.sequence * width
        return left + attention

    @property
    def _has_groups(self) -> bool:
        return self.shape.kv_heads != self.shape.heads


def loss_bytes(shape: ModelShape, dtype: Width, tokens: int, *, is_compiled: bool) -> int:
    """Give what one chunk of the loss holds, of that many tokens or fewer."""
    words = min(tokens, chunk_tokens(shape)) * shape.vocabulary
    if is_compiled:
        # Logits and their gradient.
        return words * 2 * dtype.bytes
    # Those in 32 bits, where they are not already; where the label is; softmax, labels and difference on their way.
    wide = 0 if dtype is Width.FP32 else _FLOAT
    return words * (dtype.bytes + wide + 1 + 3 * _FLOAT)


def chunk_tokens(shape: ModelShape) -> int:
    """Give how many tokens' logits are there at a time, at most."""
    return max(1, CHUNK_BYTES // (_FLOAT * shape.vocabulary))


def state_bytes(count: int, dtype: Width) -> int:
    """Give what an adapter of so many parameters always holds: itself, two moments, gathered gradients, a copy."""
    return count * (4 * _FLOAT + dtype.bytes)


def first_step_bytes(count: int, dtype: Width) -> int:
    """Give what the allocator holds beyond its tensors after the first compiled step, for each of so many parameters.

    Fitted, not counted: on an H200 it was 4 to 16 bytes a parameter, most where kernels were compiled for the first
    time. Nobody has found out yet what takes it.
    """
    return count * (3 * _FLOAT + dtype.bytes) * 2 // 3


def updating_bytes(count: int, dtype: Width, *, is_compiled: bool) -> int:
    """Give what its update makes beside that: gradients, their sums, and copies of the larger half as it is moved."""
    copies = 0 if is_compiled else 6
    return count * (dtype.bytes + _FLOAT) + copies * _FLOAT * count * 3 // 5
