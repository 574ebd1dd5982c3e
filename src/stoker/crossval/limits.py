"""How far a candidate may be from its reference, by the precision in which it ran.

The limits of a tier are the largest differences measured between correct implementations (other runtimes, kernels,
orders of sums; `docs/guides/crossval.md` has the table), times 4 to 100. They are of models whose logits have a
standard deviation of about 3. The tier follows the precision that a side recorded, not the one that was requested.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from stoker.core.errors import Diagnostic, InvalidArgs
from stoker.core.frozen import changed, fields_of, frozen
from stoker.core.text import did_you_mean

Tier = Literal["f32", "f16", "bf16", "quant"]


@frozen
class Limits:
    """The largest differences that pass. `top1` is the smallest share of positions with the same first token."""

    tier: str
    nmse: float
    max_abs_sd: float
    kl: float
    top1: float
    embedding: float
    """Relative squared error of the input of the first layer."""
    layer: float
    """The same of one layer's output for the same input."""
    head: float
    """The same of the final norm and the projection to logits."""

    @property
    def base_tier(self) -> str:
        """The precision whose limits these are, or were before some were changed."""
        return self.tier.partition(",")[0]

    def to_json(self) -> dict[str, Any]:
        return fields_of(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Limits:
        return cls(**{name: raw[name] for name in cls.__annotations__})


TIERS: dict[str, Limits] = {
    limits.tier: limits
    for limits in (
        Limits(tier="f32", nmse=1e-9, max_abs_sd=1e-4, kl=1e-8, top1=1.0, embedding=1e-10, layer=1e-10, head=1e-11),
        Limits(tier="f16", nmse=5e-4, max_abs_sd=0.2, kl=3e-3, top1=0.95, embedding=1e-5, layer=1e-5, head=1e-6),
        # An embedding that is quantised differs by rounding, as the weights do.
        # Layers and head in bf16: 100 × those of f16, as bf16 has three bits less.
        Limits(tier="bf16", nmse=2e-2, max_abs_sd=1.0, kl=0.1, top1=0.85, embedding=1e-3, layer=1e-3, head=1e-4),
        Limits(tier="quant", nmse=5e-2, max_abs_sd=2.0, kl=0.25, top1=0.65, embedding=5e-2, layer=2e-3, head=5e-4),
    )
}
_COARSENESS: tuple[Tier, ...] = ("f32", "f16", "bf16", "quant")


def known_limits() -> dict[str, dict[str, Any]]:
    """Return the limits of every tier, as receipts are verified with them."""
    return {name: limits.to_json() for name, limits in TIERS.items()}


def tier_of(precision: str) -> Tier:
    """Return the tier of a precision as a side recorded it: `F32`, `float16`, `Q8_0`, `nf4` ….

    A name that is not known is a quantised one: their names are many.
    """
    name = precision.lower().replace("torch.", "").replace("float", "f").replace("_", "")
    if name in ("f32", "fp32", "f64", "fp64", "tf32"):
        return "f16" if name == "tf32" else "f32"
    if name in ("f16", "fp16", "half"):
        return "f16"
    return "bf16" if name in ("bf16", "bf", "bfloat16", "b16") or name.startswith("bf16") else "quant"


def limits_for(*precisions: str) -> Limits:
    """Return the limits of the coarsest of these precisions: weights, cache and activations of both sides."""
    return TIERS[max((tier_of(one) for one in precisions if one), key=_COARSENESS.index, default="f32")]


def with_changes(limits: Limits, changes: Mapping[str, float]) -> Limits:
    """Return the limits with some replaced. Raises `InvalidArgs` with every fault of the names and values."""
    names = [name for name in Limits.__annotations__ if name != "tier"]
    faults = []
    for name, value in changes.items():
        if name not in names:
            hint = did_you_mean(name, names) or f"limits: {', '.join(names)}"
            faults.append(Diagnostic(f"--limit {name}", "there is no such limit", hint))
        elif not (math.isfinite(value) and 0.0 <= value <= (1.0 if name == "top1" else value)):
            # A receipt has finite numbers.
            most = "at most 1" if name == "top1" else "finite"
            faults.append(Diagnostic(f"--limit {name}={value}", f"must be 0 or more, and {most}"))
    if faults:
        raise InvalidArgs("; ".join(map(str, faults)), faults=tuple(faults))
    return changed(limits, tier=f"{limits.tier}, changed", **changes) if changes else limits
