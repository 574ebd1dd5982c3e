"""Measures of how far a candidate's logits are from a reference's, one position at a time.

Softmax ignores a shift of all logits, so each side's mean is subtracted first: two models with the same probabilities
have no difference. All sums are of 64-bit floats. One position is in memory at a time; a `PositionRow` is kept of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stoker.core.frozen import fields_of, frozen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[Any]

TOP = 5


@frozen
class PositionRow:
    """The measures of one position. None: this pair of sides can't tell."""

    pos: int
    nmse: float | None
    """Squared difference, divided by the reference's variance."""
    max_abs: float | None
    max_abs_sd: float | None
    """The same in standard deviations of the reference's logits."""
    kl: float | None
    """Kullback-Leibler divergence of the candidate from the reference, in nats."""
    top1: bool
    """Both sides prefer the same token."""
    top5: float | None
    """Share of the five tokens that the reference prefers and the candidate, too."""
    cosine: float | None
    is_bound: bool = False
    """Only the most probable tokens are known: `kl` is a lower bound."""

    def to_json(self) -> dict[str, Any]:
        return fields_of(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> PositionRow:
        return cls(**{name: raw[name] for name in cls.__annotations__ if name in raw})


def compare_logits(pos: int, reference: Vector, candidate: Vector) -> PositionRow:
    """Return the measures of one position. A value that is not finite makes the measures infinite."""
    import numpy as np

    r = np.asarray(reference, dtype=np.float64)
    c = np.asarray(candidate, dtype=np.float64)
    if not (np.isfinite(r).all() and np.isfinite(c).all()):
        return _not_finite(pos)
    raw_cosine = _cosine(r, c)
    r, c = r - r.mean(), c - c.mean()
    d = c - r
    spread = float(r @ r)
    error = float(d @ d)
    max_abs = float(np.abs(d).max())
    sd = math.sqrt(spread / r.size)
    return PositionRow(
        pos=pos,
        nmse=_ratio(error, spread),
        max_abs=max_abs,
        max_abs_sd=_ratio(max_abs, sd),
        kl=_divergence(r, d),
        top1=int(r.argmax()) == int(c.argmax()),
        top5=_shared_top(r, c),
        cosine=raw_cosine,
    )


def compare_top(pos: int, reference: Vector, top: Mapping[int, float]) -> PositionRow:
    """Compare with a side that tells only its most probable tokens and their log probabilities.

    The divergence over these tokens and one more, which stands for all others, is a lower bound of the true one.
    """
    import numpy as np

    r = np.asarray(reference, dtype=np.float64)
    if not top or not np.isfinite(r).all() or not all(math.isfinite(value) for value in top.values()):
        return _not_finite(pos)
    r = r - r.max()
    log_r = r - math.log(float(np.exp(r).sum()))
    kl, covered_r, covered_c = 0.0, 0.0, 0.0
    for token, log_c in top.items():
        if not 0 <= token < r.size:
            return _not_finite(pos)
        log_p = float(log_r[token])
        kl += math.exp(log_p) * (log_p - log_c)
        covered_r += math.exp(log_p)
        covered_c += math.exp(log_c)
    rest_r, rest_c = max(1.0 - covered_r, 0.0), max(1.0 - covered_c, 0.0)
    # Below this, what is left is rounding.
    if rest_r > 1e-9 and rest_c > 1e-9:
        kl += rest_r * math.log(rest_r / rest_c)
    best = sorted(top, key=lambda token: -top[token])[:TOP]
    ours = {int(token) for token in np.argpartition(-r, min(TOP, r.size) - 1)[:TOP]}
    return PositionRow(
        pos=pos,
        nmse=None,
        max_abs=None,
        max_abs_sd=None,
        kl=max(kl, 0.0),
        top1=int(r.argmax()) == best[0],
        top5=len(ours.intersection(best)) / min(TOP, r.size) if len(best) >= TOP else None,
        cosine=None,
        is_bound=True,
    )


def relative_error(reference: Vector, candidate: Vector) -> float:
    """Return the squared difference of two layers' outputs, divided by the reference's own squares."""
    import numpy as np

    r = np.asarray(reference, dtype=np.float64).ravel()
    d = np.asarray(candidate, dtype=np.float64).ravel() - r
    error = float(d @ d)
    return _ratio(error, float(r @ r)) if math.isfinite(error) else math.inf


def _ratio(part: float, whole: float) -> float:
    if part == 0.0:
        return 0.0
    return part / whole if whole > 0.0 else math.inf


def _cosine(r: Vector, c: Vector) -> float:
    lengths = math.sqrt(float(r @ r)) * math.sqrt(float(c @ c))
    return float(r @ c) / lengths if lengths > 0.0 else float(bool((r == c).all()))


def _divergence(r: Vector, d: Vector) -> float:
    """Return KL(r ‖ r + d), exact to the last digits where `d` is small: log E[exp(d − E d)] under softmax(r)."""
    import numpy as np

    logs = r - r.max()
    logs -= math.log(float(np.exp(logs).sum()))
    p = np.exp(logs)
    centred = d - float(p @ d)
    if float(centred.max()) < 1.0:
        return max(math.log1p(float(p @ np.expm1(centred))), 0.0)
    # Large exponentials would overflow, and probabilities that are 0 as floats still count.
    terms = logs + centred
    highest = float(terms.max())
    return max(highest + math.log(float(np.exp(terms - highest).sum())), 0.0)


def _shared_top(r: Vector, c: Vector) -> float:
    import numpy as np

    count = min(TOP, r.size)
    first = set(np.argpartition(-r, count - 1)[:count].tolist())
    return len(first.intersection(np.argpartition(-c, count - 1)[:count].tolist())) / count


def _not_finite(pos: int) -> PositionRow:
    worst = math.inf
    return PositionRow(
        pos=pos, nmse=worst, max_abs=worst, max_abs_sd=worst, kl=worst, top1=False, top5=0.0, cosine=-1.0
    )
