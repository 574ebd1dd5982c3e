"""`name=number` pairs in a line of somebody's output. Pure, and linear in the line.

    step=12 loss=0.5 acc=91.2%                         step 12, loss 0.5, acc 91.2
    Epoch 3:  50%|██▌  | 5/10 [00:05, loss=nan]        loss NaN
    epoch=2 step=40/100 val/loss=1e-3, lr=3e-4.        step 40 of 100, epoch 2, val/loss 0.001, lr 0.0003

A pair begins the line or follows white space or one of `( [ { , ; : |`, and its number ends with the line, white space,
one of `) ] } ; | %`, or a comma or full stop that does not belong to a longer number. So these are none: `--lr=0.1`,
`?page=2&size=10`, `version=1.2.3`, `time=3.2s`, `n=1,000`, `path=/a/b=3`, `ratio=1/2`.
"""

from __future__ import annotations

import re

from stoker.model.frozen import frozen
from stoker.plan.metrics.file import clean_name

STEP_NAMES = ("global_step", "step", "iteration", "iter", "epoch")
"""What may say where a line stands, the most telling first; the others of a line are metrics like any other."""

_NUMBER = rb"[+-]?(?:(?:\d{1,400}(?:\.\d{0,400})?|\.\d{1,400})(?:[eE][+-]?\d{1,5})?|(?i:nan|inf(?:inity)?))"
_END = rb"(?=%?(?:[\s)\]};|]|[,.]?(?:\s|$)|,(?!\d)))"
_PAIR = re.compile(
    rb"(?<![^\s(\[{,;:|])([A-Za-z_\x80-\xff][\w.@/\x80-\xff-]{0,99})=(?>(" + _NUMBER + rb")(?:/(\d{1,18}))?)" + _END
)
_WHOLE = re.compile(_NUMBER)
_COLOUR = re.compile(rb"\x1b\[[0-9;?]{0,20}[A-Za-z]")
_STEP_LIMIT = 2**63


@frozen
class Pairs:
    """What a line says."""

    step: int | None
    of: int | None
    is_epoch: bool
    """The step is the number of an epoch: the line has no other."""
    values: dict[str, float]


NO_PAIRS = Pairs(step=None, of=None, is_epoch=False, values={})


def pairs_in(line: bytes) -> Pairs:
    """Find the pairs of a line; of a name that comes twice, the last."""
    if b"=" not in line:
        return NO_PAIRS
    if b"\x1b" in line:
        line = _COLOUR.sub(b"", line)
    numbers: dict[str, bytes] = {}
    totals: dict[str, bytes] = {}
    for name, number, total in _PAIR.findall(line):
        text = clean_name(name.decode("utf-8", "replace"))
        if not total:
            numbers[text] = number
        elif text in STEP_NAMES:
            numbers[text], totals[text] = number, total
    if not numbers:
        return NO_PAIRS
    name, step = take_step(numbers)
    of = int(totals[name]) if name in totals else None
    values = {text: float(number) for text, number in numbers.items()}
    return Pairs(step=step, of=of, is_epoch=name == STEP_NAMES[-1], values=values)


def take_step(numbers: dict[str, bytes]) -> tuple[str, int | None]:
    """Take the number that says where a line stands out of a line's numbers; only a whole one can."""
    for name in STEP_NAMES:
        if name in numbers and (step := _whole(numbers[name])) is not None:
            del numbers[name]
            return name, step
    return "", None


def is_number(word: bytes) -> bool:
    """Whether a word is a number, and nothing else."""
    return _WHOLE.fullmatch(word) is not None


def _whole(number: bytes) -> int | None:
    if number.lstrip(b"+-").isdigit():
        value = int(number)
    else:
        as_float = float(number)
        if not as_float.is_integer():
            return None
        value = int(as_float)
    return value if abs(value) < _STEP_LIMIT else None
