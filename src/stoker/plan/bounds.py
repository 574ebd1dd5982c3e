"""Limits of a number: declared with an argument, checked with its value, written into its schema."""

from __future__ import annotations

import operator
from typing import Any

from stoker.model.frozen import frozen


@frozen
class Bounds:
    """Limits of a number; an item that is not a number has none."""

    ge: float | None = None
    le: float | None = None
    gt: float | None = None
    lt: float | None = None

    def check(self, value: Any) -> None:
        """Raise `ValueError` naming the limit that does not hold."""
        if type(value) not in (int, float):
            return
        ge, le, gt, lt = self.ge, self.le, self.gt, self.lt
        is_within = (ge is None or value >= ge) and (le is None or value <= le)
        if is_within and (gt is None or value > gt) and (lt is None or value < lt):
            return
        for limit, word, holds in (
            (self.ge, "at least", operator.ge),
            (self.gt, "more than", operator.gt),
            (self.le, "at most", operator.le),
            (self.lt, "less than", operator.lt),
        ):
            # NaN compares false with every limit, so it is within none.
            if limit is not None and not holds(value, limit):
                message = f"must be {word} {limit}, got {value}"
                raise ValueError(message)

    def within(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Give a JSON Schema with the limits on the numbers that it describes, however deep they stand."""
        if "anyOf" in schema:
            return {**schema, "anyOf": [self.within(one) for one in schema["anyOf"]]}
        for inner in ("items", "additionalProperties"):
            if isinstance(schema.get(inner), dict):
                return {**schema, inner: self.within(schema[inner])}
        if schema.get("type") not in ("integer", "number"):
            return schema
        names = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
        limits = {names[name]: getattr(self, name) for name in names if getattr(self, name) is not None}
        return {**schema, **limits}
