"""Attention as torch and transformers compute it: in one kernel that never holds the scores, or with all of them."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.hardware.estimate.operations import FLOAT, add, cast, dropout, elementwise
from stoker.hardware.estimate.tape import Storage, Tape, Tensor

_ALIGNED_BYTES = 256


def fused_attention(
    tape: Tape, qkv: tuple[Tensor, Tensor, Tensor], *, heads: int, rows: int, mask_elements: int = 0
) -> Tensor:
    """Attend without ever holding the scores: what is kept is the inputs, the result and a number per row and head.

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


def score_attention(  # noqa: PLR0913 - what a kernel is told
    tape: Tape,
    qkv: tuple[Tensor, Tensor, Tensor],
    *,
    scores: int,
    mask: Tensor | None,
    share: float,
    is_wide: bool,
    is_single: bool,
) -> Tensor:
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


def _widened(x: Tensor) -> Tensor:
    """Softmax reads one width and writes another, without a copy in between."""
    return Tensor(x.storage, x.elements, FLOAT, x.node, x.slot)


def copied(tape: Tape, x: Tensor) -> Tensor:
    """Lay a tensor out anew."""
    size_bytes = x.size_bytes
    return tape.result(tape.fresh(size_bytes), x.elements, x.width, (x,), lambda grads: grads)


def _laid_out(tape: Tape, x: Tensor, elements: int, *, is_single: bool) -> Tensor:
    """Give keys for every head, and no view of something larger: a batch of products takes neither."""
    if x.elements == elements and (is_single or x.storage.size_bytes == x.size_bytes):
        return x
    size_bytes = x.size_bytes
    return tape.result(tape.fresh(elements * x.width), elements, x.width, (x,), lambda _: (tape.fresh(size_bytes),))


def _matched(tape: Tape, pair: tuple[Tensor, Tensor], elements: int, width: int) -> Tensor:
    """Multiply two batches of matrices, both of which may want gradients."""
    a, b = pair
    out = tape.fresh(elements * width)
    kept = (a.storage, b.storage) if any(tape.wants(one) for one in pair) else ()
    sizes = (a.size_bytes, b.size_bytes)

    def run(_grads: list[Storage | None], _kept: tuple[Storage, ...] = kept) -> Sequence[Storage]:
        return [tape.fresh(size_bytes) for size_bytes in sizes]

    return tape.result(out, elements, width, pair, run)
