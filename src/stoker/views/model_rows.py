"""Results as screens get them: by digest, with what they were made from. Pure."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from stoker.core.job import JobSpec, contents_of
from stoker.core.text import one_line
from stoker.protocol.screen_messages import LineageInput

MOST_PER_PAGE = 200
_INPUTS = 100
_LONGEST = 200


def data_of(spec: JobSpec) -> tuple[LineageInput, ...]:
    """Return the data of a job: what it brings along, and the files among its arguments; each digest once."""
    found = {one.tree or one.repo: one.name or one.where for one in spec.inputs if one.tree or one.repo}
    for name, wanted in spec.identity.items():
        for path, digest in contents_of(wanted, spec.args.get(name)):
            found.setdefault(digest, os.path.basename(path) or name)
    return inputs_of((name, digest) for digest, name in found.items())


def code_of(spec: JobSpec) -> tuple[LineageInput, ...]:
    """Return the code of a job: its tree, then the files or modules that it consists of."""
    tree = [("code tree", spec.code_tree)] if spec.code_tree else []
    return inputs_of([*tree, *spec.code.items()])


def environment_of(spec: JobSpec) -> str:
    """Return what a job's environment is made from; empty: the machine's own interpreter."""
    first = next(iter(spec.environment), None)
    return "" if first is None else one_line(" ".join(filter(None, (first.kind, first.path, first.digest))), _LONGEST)


def inputs_of(pairs: Iterable[tuple[str, str]]) -> tuple[LineageInput, ...]:
    """Return names with digests; of very many the first."""
    found = [LineageInput(name=one_line(name, _LONGEST), digest=one_line(digest, _LONGEST)) for name, digest in pairs]
    return tuple(found[:_INPUTS])


def finite_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among metrics; of very many the first."""
    numbers = {str(name): float(value) for name, value in metrics.items() if type(value) in (int, float)}
    return dict(list(numbers.items())[:_INPUTS])
