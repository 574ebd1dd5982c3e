"""What trials were measured on, for people: why nobody is the best of all."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.core.text import one_line
from stoker.jobs.trials import ComparableTrials
from stoker.views.recipe_lines import value_text
from stoker.views.text_tables import near_path

_LONGEST = 60


def ground_text(told_by: Mapping[str, Any], near: str) -> str:
    """Return what tells a ground from the others, such as `data=legal.jsonl`; files as they are seen from a folder."""
    return ", ".join(f"{name}={one_line(ground_value(value, near), _LONGEST)}" for name, value in told_by.items())


def ground_value(value: Any, near: str) -> str:
    """Write one value that tells grounds apart; a file as it is seen from a folder."""
    is_path = isinstance(value, str) and os.path.isabs(value)
    return near_path(value, near) if is_path else value_text(value)


def not_compared_text(metric: str, grounds: Sequence[ComparableTrials[Any]]) -> str:
    """Return of trials on several grounds why they are not ranked against each other."""
    names = list(grounds[0].told_by)
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{metric} on different {listed} is not compared"
