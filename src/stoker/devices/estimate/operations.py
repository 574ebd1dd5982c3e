"""Memory that each of torch's operations takes, keeps and frees, forward and backward.

Named for what they do; the sizes are those of torch's own kernels. Temporaries that live for one kernel only are here
if they are as large as their operands, because they decide where the peak is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stoker.devices.estimate.tape import Backward, Leaf, Purpose, Storage, SymbolicTensor, Tape

FLOAT = 4
"""The width of 32-bit floats."""
_MANY_ROWS = 1024
_FEW_COLUMNS = 256
_SUM_BYTES = 32768
"""The most that torch takes for each column whose many rows it adds up."""


def cast(tape: Tape, x: SymbolicTensor, width: int, purpose: Purpose | None = None) -> SymbolicTensor:
    """Copy into another width; nothing if it has that width."""
    if x.width == width:
        return x
    size_bytes = x.size_bytes
    out = tape.fresh(x.elements * width, purpose)
    return tape.result(out, x.elements, width, (x,), lambda _: (tape.fresh(size_bytes, purpose),))


def elementwise(
    tape: Tape, x: SymbolicTensor, *, keeps_input: bool = False, keeps_result: bool = False
) -> SymbolicTensor:
    """Make a tensor of the same size: scale, negate, square root, activations."""
    out = tape.fresh(x.size_bytes)
    kept = [x.storage] * keeps_input + [out] * keeps_result if tape.wants(x) else []
    size_bytes = x.size_bytes

    def run(_grads: list[Storage | None], _kept: list[Storage] = kept) -> tuple[Storage]:
        return (tape.fresh(size_bytes),)

    return tape.result(out, x.elements, x.width, (x,), run)


def square(tape: Tape, x: SymbolicTensor) -> SymbolicTensor:
    """Square; its backward pass makes two copies on the way."""
    out = tape.fresh(x.size_bytes)
    kept = x.storage if tape.wants(x) else None
    size_bytes = x.size_bytes

    def run(_grads: list[Storage | None], _kept: Storage | None = kept) -> tuple[Storage]:
        _power = tape.fresh(size_bytes)
        _twice = tape.fresh(size_bytes)
        return (tape.fresh(size_bytes),)

    return tape.result(out, x.elements, x.width, (x,), run)


def mean_of_rows(tape: Tape, x: SymbolicTensor, rows: int) -> SymbolicTensor:
    """Average each row."""
    size_bytes = x.size_bytes
    return tape.result(tape.fresh(rows * x.width), rows, x.width, (x,), lambda _: (tape.fresh(size_bytes),))


def multiply(tape: Tape, a: SymbolicTensor, b: SymbolicTensor) -> SymbolicTensor:
    """Multiply element by element; the smaller one is repeated."""
    elements, width = max(a.elements, b.elements), max(a.width, b.width)
    out = tape.fresh(elements * width)
    kept_a = a.storage if tape.wants(b) else None
    kept_b = b.storage if tape.wants(a) else None
    wanted = [
        (place, one.elements, one.width, isinstance(one.node, Leaf)) for place, one in enumerate((a, b)) if one.node
    ]

    def run(
        _grads: list[Storage | None], _kept: tuple[Storage | None, Storage | None] = (kept_a, kept_b)
    ) -> Sequence[Storage | None]:
        made: list[Storage | None] = [None, None]
        for place, *_ in wanted:
            made[place] = tape.fresh(elements * width)
        for place, count, own_width, is_weight in wanted:
            if is_weight:
                made[place] = _summed(tape, elements // count, count, own_width)
            elif count * own_width != elements * width:
                made[place] = tape.fresh(count * own_width)
        return made

    return tape.result(out, elements, width, (a, b), run)


def add(tape: Tape, a: SymbolicTensor, b: SymbolicTensor) -> SymbolicTensor:
    """Add; both get the gradient as it is, or in their own width."""
    width = max(a.width, b.width)
    out = tape.fresh(a.elements * width)
    narrow = [one.size_bytes if one.width < width else 0 for one in (a, b)]

    def run(grads: list[Storage | None]) -> Sequence[Storage | None]:
        return [tape.fresh(size_bytes) if size_bytes else grads[0] for size_bytes in narrow]

    return tape.result(out, a.elements, width, (a, b), run)


def dropout(tape: Tape, x: SymbolicTensor, share: float) -> SymbolicTensor:
    """Drop a share of the elements; a mask of one byte each is kept."""
    if not share:
        return x
    mask, out = tape.fresh(x.elements), tape.fresh(x.size_bytes)
    size_bytes = x.size_bytes

    def run(_grads: list[Storage | None], _kept: Storage = mask) -> tuple[Storage]:
        return (tape.fresh(size_bytes),)

    return tape.result(out, x.elements, x.width, (x,), run)


def product(
    tape: Tape,
    x: SymbolicTensor,
    weight: SymbolicTensor,
    outputs: int,
    bias: SymbolicTensor | None = None,
    purpose: Purpose | None = None,
) -> SymbolicTensor:
    """Multiply rows by a weight matrix, in the width of the weights or that of autocast."""
    inputs = weight.elements // outputs
    if tape.autocast_width:
        bias = tape.cast_weight(bias) if bias is not None else None
        weight = tape.cast_weight(weight)
        x = cast(tape, x, tape.autocast_width)
    rows = x.elements // inputs
    elements = rows * outputs
    out = tape.fresh(elements * x.width, purpose)
    tape.multiplies()
    kept = (x.storage if tape.wants(weight) else None, weight.storage if tape.wants(x) else None)
    taken = (x, weight) if bias is None else (x, weight, bias)
    sizes = [one.size_bytes if one.node is not None else 0 for one in taken]

    def run(
        _grads: list[Storage | None], _kept: tuple[Storage | None, Storage | None] = kept
    ) -> Sequence[Storage | None]:
        made: list[Storage | None] = [None] * len(sizes)
        # Without a bias, the input's gradient comes last.
        for place in (0, 1) if len(sizes) > 2 else (1, 0):
            if sizes[place]:
                made[place] = tape.viewed(sizes[place])
                tape.multiplies()
        if len(sizes) > 2 and sizes[2]:
            made[2] = _summed(tape, rows, outputs, sizes[2] // outputs)
        return made

    return tape.result(out, elements, x.width, taken, run)


def _summed(tape: Tape, rows: int, columns: int, width: int) -> Storage:
    """Add rows up into one; torch adds many of them in parts, in a buffer of their own."""
    if rows < _MANY_ROWS:
        return tape.fresh(columns * width)
    _parts = tape.fresh(columns * min(rows * (2 if columns <= _FEW_COLUMNS else 8), _SUM_BYTES))
    return tape.fresh(columns * width)


def embed(tape: Tape, ids: Storage, weight: SymbolicTensor, hidden: int, tokens: int) -> SymbolicTensor:
    """Look rows up; the gradient of the table is as large as the table."""
    out = tape.fresh(tokens * hidden * weight.width)
    size_bytes = weight.size_bytes

    def run(_grads: list[Storage | None], _kept: Storage = ids) -> tuple[Storage]:
        _sorted = [tape.fresh(tokens * 8) for _ in range(4)]
        return (tape.fresh(size_bytes),)

    return tape.result(out, tokens * hidden, weight.width, (weight,), run)


def cut(tape: Tape, x: SymbolicTensor, parts: Sequence[int]) -> list[SymbolicTensor]:
    """Cut rows into views of so many elements each; backward, one tensor is put together from all."""
    size_bytes = x.size_bytes
    node = tape.node((x,), lambda _: (tape.fresh(size_bytes),))
    return [SymbolicTensor(x.storage, part, x.width, node, slot) for slot, part in enumerate(parts)]


def slices(tape: Tape, x: SymbolicTensor, parts: Sequence[int]) -> list[SymbolicTensor]:
    """Return views that were sliced one by one; backward, each makes a tensor as large as the whole."""
    size_bytes = x.size_bytes
    run: Backward = lambda _: (tape.fresh(size_bytes),)  # noqa: E731 - the same for each
    return [SymbolicTensor(x.storage, part, x.width, tape.node((x,), run)) for part in parts]


def by_head(tape: Tape, x: SymbolicTensor) -> SymbolicTensor:
    """View rows head by head; backward, the gradient is copied into another layout."""
    size_bytes = x.size_bytes
    return tape.result(x.storage, x.elements, x.width, (x,), lambda _: (tape.viewed(size_bytes),))


def join(tape: Tape, parts: Sequence[SymbolicTensor]) -> SymbolicTensor:
    """Put tensors together into a new one; backward, each gets a view of the gradient."""
    elements, width = sum(part.elements for part in parts), parts[0].width
    count = len(parts)
    return tape.result(tape.fresh(elements * width), elements, width, parts, lambda grads: [grads[0]] * count)


def layer_norm(
    tape: Tape, x: SymbolicTensor, weight: SymbolicTensor, bias: SymbolicTensor, rows: int
) -> SymbolicTensor:
    """Normalise in one kernel, which keeps its input and two numbers per row."""
    if tape.autocast_width:
        x = cast(tape, x, FLOAT)
    out = tape.fresh(x.size_bytes)
    stats = [tape.fresh(rows * FLOAT) for _ in range(2)]
    kept = (x.storage, *stats) if any(tape.wants(one) for one in (x, weight)) else ()
    sizes = [one.size_bytes if one.node is not None else 0 for one in (x, weight, bias)]

    def run(_grads: list[Storage | None], _kept: tuple[Storage, ...] = kept) -> Sequence[Storage | None]:
        return [tape.fresh(size_bytes) if size_bytes else None for size_bytes in sizes]

    return tape.result(out, x.elements, x.width, (x, weight, bias), run)


def cross_entropy(tape: Tape, logits: SymbolicTensor, rows: int) -> SymbolicTensor:
    """Return the loss of 32-bit logits: their log-softmax is kept; backward, two more of its size are made."""
    size_bytes, purpose = logits.size_bytes, Purpose.LOGITS
    soft = tape.fresh(size_bytes, purpose)
    labels = tape.fresh(rows * 8)
    inner = tape.result(soft, logits.elements, logits.width, (logits,), _after(tape, soft, size_bytes))
    loss = tape.fresh(FLOAT)

    def run(_grads: list[Storage | None], _kept: tuple[Storage, Storage] = (soft, labels)) -> tuple[Storage]:
        return (tape.fresh(size_bytes, purpose),)

    return tape.result(loss, 1, FLOAT, (inner,), run)


def _after(tape: Tape, soft: Storage, size_bytes: int) -> Backward:
    def run(_grads: list[Storage | None], _kept: Storage = soft) -> tuple[Storage]:
        return (tape.fresh(size_bytes, Purpose.LOGITS),)

    return run


def computed_again(tape: Tape, block: Callable[[SymbolicTensor], SymbolicTensor], x: SymbolicTensor) -> SymbolicTensor:
    """Run a block and keep only its input; backward, it is run again for what its own backward pass needs."""
    was_recording, tape.is_recording = tape.is_recording, False
    out = block(x)
    tape.is_recording = was_recording
    elements, width, autocast_width = x.elements, x.width, tape.autocast_width

    def run(grads: list[Storage | None], _kept: Storage = x.storage) -> tuple[Storage | None]:
        entry = Leaf()
        was_width, tape.autocast_width = tape.autocast_width, autocast_width
        end = block(SymbolicTensor(_kept, elements, width, entry)).node
        tape.forget_casts()
        tape.autocast_width = was_width
        if end is not None:
            tape.backward(end, grads)
        return (entry.gradient,)

    return tape.result(out.storage, out.elements, out.width, (x,), run)
