"""Folders that trials write to: no two trials write to one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.plan.args import ArgsSchema


def apart(schema: ArgsSchema, trials: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Give the arguments of labelled trials; a folder that several name becomes one below it for each."""
    args = [dict(values) for _, values in trials]
    for name in (spec.name for spec in schema.specs.values() if spec.is_each):
        named = Counter(values[name] for values in args if values.get(name))
        for (label, _), values in zip(trials, args, strict=True):
            if named[values.get(name)] > 1:
                values[name] = os.path.join(values[name], label)
    return args
