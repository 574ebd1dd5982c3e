from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.later import imported_later

with imported_later():
    import torch

    from stoker.cookbooks.language.compute import math
    from stoker.cookbooks.language.compute.math import PointwiseKernels


@pytest.fixture
def _traced_at_most_twice(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trace functions as on a GPU, but make no kernels; torch gives up on a function after two kinds of input."""
    import torch._dynamo.config

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(math, "_MOST_KINDS", 2)
    monkeypatch.setattr(torch._dynamo.config, "recompile_limit", 2)
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("_traced_at_most_twice")
def test_more_kinds_of_input_than_torch_keeps_kernels_for_are_no_error_and_give_the_same() -> None:
    compiled, plain = PointwiseKernels(compiles=True), PointwiseKernels(compiles=False)
    weight = torch.linspace(0.5, 1.5, 8)
    for kind in ((8,), (1, 8), (3, 8), (1, 3, 8), (2, 3, 8), (2, 2, 3, 8)):
        x = torch.arange(float(torch.tensor(kind).prod())).view(kind)
        assert torch.equal(compiled.norm(x, weight, 1e-6), plain.norm(x, weight, 1e-6))
