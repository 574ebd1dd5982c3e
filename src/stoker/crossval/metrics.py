"""Measures of how far a candidate's logits are from a reference's, one position at a time.

Softmax ignores a shift of all logits, so each side's mean is subtracted first: two models with the same probabilities
have no difference. All sums are of 64-bit floats. One position is in memory at a time; a `PositionRow` is kept of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.core.frozen import fields_of, frozen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector = NDArray[Any]

TOP = 5
_LEAST_REST = 1e-6
"""The smallest rest of probability that a sum of 32-bit log probabilities shows: below it is rounding."""
_ROWS = 64


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
    """Of one side only the most probable tokens are known: `kl` is a lower bound."""

    def to_json(self) -> dict[str, Any]:
        return fields_of(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> PositionRow:
        return cls(**{name: raw[name] for name in cls.__annotations__ if name in raw})


class LogitsComparison:
    """Compares rows of one length, in memory that is allocated once. Not thread-safe."""

    def __init__(self, size: int) -> None:
        import numpy as np

        self._r, self._d, self._p = (np.empty(size, dtype=np.float64) for _ in range(3))

    def row(self, pos: int, reference: Vector, candidate: Vector) -> PositionRow:
        """Return the measures of one position. A value that is not finite makes the measures infinite."""
        r, d, size = self._r, self._d, self._r.size
        r[:], d[:] = reference, candidate
        mean_r, mean_c = float(r.sum()) / size, float(d.sum()) / size
        # A sum over a value that is not finite is not finite.
        if not (math.isfinite(mean_r) and math.isfinite(mean_c)):
            return _not_finite(pos)
        best = int(r.argmax())
        is_same = best == int(d.argmax())
        r -= mean_r
        d -= mean_c
        d -= r
        spread, error, cross = _dot(r, r), _dot(d, d), _dot(r, d)
        max_abs = max(float(d.max()), -float(d.min()))
        return PositionRow(
            pos=pos,
            nmse=_ratio(error, spread),
            max_abs=max_abs,
            max_abs_sd=_ratio(max_abs, math.sqrt(spread / size)),
            kl=self._divergence(highest=float(r[best])),
            top1=is_same,
            top5=_shared_top(reference, candidate),
            cosine=_cosine(
                spread + size * mean_r * mean_r,
                max(spread + 2.0 * cross + error, 0.0) + size * mean_c * mean_c,
                spread + cross + size * mean_r * mean_c,
                is_equal=error == 0.0 and mean_r == mean_c,
            ),
        )

    def _divergence(self, *, highest: float) -> float:
        """Return KL(r ‖ r + d), exact to the last digits where `d` is small: log E[exp(d − E d)] under softmax(r)."""
        import numpy as np

        r, d, p = self._r, self._d, self._p
        np.subtract(r, highest, out=p)
        np.exp(p, out=p)
        total = float(p.sum())
        d -= _dot(p, d) / total
        if float(d.max()) < 1.0:
            return max(math.log1p(_dot(p, np.expm1(d, out=d)) / total), 0.0)
        # Large exponentials would overflow, and probabilities that are 0 as floats still count.
        d += r
        d -= highest + math.log(total)
        most = float(d.max())
        return max(most + math.log(float(np.exp(d - most).sum())), 0.0)


def compare_top(pos: int, logits: Vector, top: Mapping[int, float], *, is_top_reference: bool = False) -> PositionRow:
    """Compare all logits of one side with the most probable tokens of the other, and their log probabilities.

    The divergence is that of the candidate from the reference, over these tokens and one more, which stands for all
    others: a lower bound of the true one.
    """
    import numpy as np

    whole = np.asarray(logits, dtype=np.float64)
    if not top or not np.isfinite(whole).all() or not all(math.isfinite(value) for value in top.values()):
        return _not_finite(pos)
    whole = whole - whole.max()
    logs = whole - math.log(float(np.exp(whole).sum()))
    if not all(0 <= token < whole.size for token in top):
        return _not_finite(pos)
    pairs = [(float(logs[token]), told) for token, told in top.items()]
    best = sorted(top, key=lambda token: -top[token])[:TOP]
    first = {int(token) for token in np.argpartition(-whole, min(TOP, whole.size) - 1)[:TOP]}
    return PositionRow(
        pos=pos,
        nmse=None,
        max_abs=None,
        max_abs_sd=None,
        kl=_least_divergence([(told, one) for one, told in pairs] if is_top_reference else pairs),
        top1=int(whole.argmax()) == best[0],
        top5=len(first.intersection(best)) / min(TOP, whole.size) if len(best) >= TOP else None,
        cosine=None,
        is_bound=True,
    )


def _least_divergence(pairs: Sequence[tuple[float, float]]) -> float:
    """Return a lower bound of the divergence, from the log probabilities of some tokens: reference, candidate."""
    kl = math.fsum(math.exp(p) * (p - q) for p, q in pairs)
    rest_p = max(1.0 - math.fsum(math.exp(p) for p, _ in pairs), 0.0)
    rest_q = max(1.0 - math.fsum(math.exp(q) for _, q in pairs), 0.0)
    if rest_p > 0.0:
        # A candidate that leaves nothing for the others may have cut them off. Where it leaves less than its floats can
        # show, more is assumed, up to the reference's own rest: that can only make the bound smaller.
        kl += rest_p * math.log(rest_p / max(rest_q, min(rest_p, _LEAST_REST)))
    return max(kl, 0.0)


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


def _dot(one: Vector, other: Vector) -> float:
    """Return the sum of products. BLAS would start threads for it, which wait for each other on a busy machine."""
    import numpy as np

    return float(np.einsum("i,i->", one, other))


def _cosine(squares_r: float, squares_c: float, products: float, *, is_equal: bool) -> float:
    lengths = math.sqrt(squares_r) * math.sqrt(squares_c)
    return min(max(products / lengths, -1.0), 1.0) if lengths > 0.0 else float(is_equal)


def _shared_top(r: Vector, c: Vector) -> float:
    count = min(TOP, len(r))
    return len(set(_top(r, count)).intersection(_top(c, count))) / count


def _top(values: Vector, count: int) -> list[int]:
    """Return the places of the largest values, in any order.

    Each of them is in one of as many columns, those with the largest maxima: nothing else is sorted.
    """
    import numpy as np

    columns = values.size // _ROWS
    if columns <= 2 * count:
        return np.argpartition(values, -count)[-count:].tolist()  # type: ignore[no-any-return]
    whole = columns * _ROWS
    best = np.argpartition(values[:whole].reshape(_ROWS, columns).max(axis=0), -count)[-count:]
    places = (np.arange(0, whole, columns)[:, None] + best).ravel()
    places = np.concatenate((places, np.arange(whole, values.size)))
    return places[np.argpartition(values[places], -count)[-count:]].tolist()  # type: ignore[no-any-return]


def _not_finite(pos: int) -> PositionRow:
    worst = math.inf
    return PositionRow(
        pos=pos, nmse=worst, max_abs=worst, max_abs_sd=worst, kl=worst, top1=False, top5=0.0, cosine=-1.0
    )
