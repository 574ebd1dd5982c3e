"""Kernels of the GPU compute what the functions of `math` say: by Triton's interpreter, which needs no GPU."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any

import pytest

from tests.later import imported_later

with imported_later():
    import torch

    from stoker.cookbooks.language.compute.math import PointwiseKernels, attend, mask_of
    from stoker.cookbooks.language.compute.nf4 import dequantise, quantise
    from stoker.cookbooks.language.compute.slots import pointwise_kernels

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(
        not os.environ.get("TRITON_INTERPRET"), reason="a GPU runs them: tests/system/test_adapters_on_gpu.py"
    ),
]
TOKENS = 5


@pytest.fixture(scope="module")
def kernels() -> Any:
    return pointwise_kernels(compiles=True)


@pytest.fixture(scope="module")
def plain() -> Any:
    return PointwiseKernels()


@pytest.fixture(params=["float32", "bfloat16"])
def kind(request: pytest.FixtureRequest) -> Any:
    return getattr(torch, request.param)


def drawn(*shape: int, kind: Any = None, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(kind or torch.float32)


def same(found: Any, expected: Any) -> None:
    """The same but for the order of sums, and the last bit of a narrow number."""
    for one, two in zip(found, expected, strict=True):
        assert one.dtype == two.dtype
        assert one.shape == two.shape
        if one.dtype == torch.float32:
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
        else:
            assert (one - two).float().norm() <= 1e-2 * two.float().norm()


@pytest.mark.parametrize("width", [48, 130])
def test_norms_of_rows(kernels: Any, plain: Any, kind: Any, width: int) -> None:
    x, more, gradient, beside = (drawn(2, TOKENS, width, kind=kind, seed=seed) for seed in range(4))
    weight = drawn(width, kind=kind, seed=9)
    same([kernels.norm(x, weight, 1e-6)], [plain.norm(x, weight, 1e-6)])
    same(kernels.norm_sum(x, more, weight, 1e-6), plain.norm_sum(x, more, weight, 1e-6))
    given = (x, weight, 1e-6, gradient, beside)
    same(kernels.norm_backward(*given), plain.norm_backward(*given))


def test_norms_of_heads_side_by_side_with_others(kernels: Any, plain: Any, kind: Any) -> None:
    qkv, weight = drawn(2, TOKENS, 8, 32, kind=kind), drawn(32, kind=kind, seed=1)
    q, k, _ = qkv.split([4, 2, 2], dim=2)
    for heads in (q, k):
        same([kernels.norm(heads, weight, 1e-6)], [plain.norm(heads, weight, 1e-6)])
        given = (heads, weight, 1e-6, heads * 2, torch.zeros_like(heads))
        same(kernels.norm_backward(*given), plain.norm_backward(*given))


@pytest.mark.parametrize("has_norms", [False, True], ids=["rotated", "normed and rotated"])
def test_rotations_of_heads(kernels: Any, plain: Any, kind: Any, has_norms: bool) -> None:
    q, k, width = 3, 2, 24
    qkv, cos, sin = drawn(2, TOKENS, 7, width, kind=kind), *(drawn(2, TOKENS, 1, width // 2, seed=at) for at in (1, 2))
    norms = (drawn(width, kind=kind, seed=5), drawn(width, kind=kind, seed=6)) if has_norms else None
    given = (norms, 1e-6, (cos, sin))
    same([kernels.norm_rotate(qkv, q, *given)], [plain.norm_rotate(qkv, q, *given)])
    # As gradients may come from attention: heads before tokens in memory.
    gradients = tuple(drawn(2, heads, TOKENS, width, kind=kind, seed=heads).transpose(1, 2) for heads in (q, k, k))
    found = kernels.norm_rotate_backward(gradients, qkv if has_norms else None, *given)
    same([found], [plain.norm_rotate_backward(gradients, qkv, *given)])
    assert found.is_contiguous()


def test_the_gradient_of_rotated_heads_is_that_of_autograd(plain: Any) -> None:
    qkv, cos, sin = drawn(2, TOKENS, 7, 24).requires_grad_(), drawn(2, TOKENS, 1, 12, seed=1), drawn(2, TOKENS, 1, 12)
    norms = (drawn(24, seed=5), drawn(24, seed=6))
    gradients = drawn(2, TOKENS, 7, 24, seed=7).split([3, 2, 2], dim=2)
    result = plain.norm_rotate(qkv, 3, norms, 1e-6, (cos, sin))
    (expected,) = torch.autograd.grad(result, qkv, torch.cat(gradients, dim=2))
    found = plain.norm_rotate_backward(gradients, qkv.detach(), norms, 1e-6, (cos, sin))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_gate(kernels: Any, plain: Any, kind: Any) -> None:
    opened, up, gradient = (drawn(2, TOKENS, 77, kind=kind, seed=seed) for seed in range(3))
    same([kernels.gate(opened, up)], [plain.gate(opened, up)])
    same(kernels.gate_backward(opened, up, gradient), plain.gate_backward(opened, up, gradient))


@pytest.mark.parametrize("words", [100, 9000], ids=["one block", "more"])
def test_losses(kernels: Any, plain: Any, kind: Any, words: int) -> None:
    logits = (drawn(4, words, kind=kind) * 4).contiguous()
    labels = torch.tensor([3, -100, words - 1, 0])
    shares = torch.tensor([0.5, 1.0, 0.25, 0.0])
    same([kernels.loss(logits, labels)], [plain.loss(logits, labels)])
    expected = plain.loss_and_gradient(logits, labels, shares)
    same(kernels.loss_and_gradient(logits.clone(), labels, shares), expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_loss_of_numbers_that_are_not_finite_is_none(kernels: Any) -> None:
    logits, labels, shares = drawn(3, 40), torch.tensor([1, 2, 3]), torch.ones(3)
    logits[0, 7] = float("nan")
    logits[1, 7] = float("inf")
    losses, gradient = kernels.loss_and_gradient(logits, labels, shares)
    assert losses.isfinite().tolist() == [False, False, True]
    assert gradient.isfinite().all(dim=1).tolist() == [False, False, True]


def test_weights_of_four_bits(kind: Any) -> None:
    from stoker.cookbooks.language.compute.gpu_kernels import dequantise_nf4

    matrix = quantise(drawn(300, 64))
    found, expected = torch.empty(300, 64, dtype=kind), torch.empty(300, 64, dtype=kind)
    dequantise_nf4(matrix, found)
    dequantise(matrix, expected)
    same([found], [expected])


def test_rows_of_a_table(kind: Any) -> None:
    from stoker.cookbooks.language.compute.gpu_kernels import gathered_rows

    table, tokens = drawn(9, 2100, kind=kind), torch.tensor([[0, 8, 3], [3, 1, 7]])
    assert torch.equal(gathered_rows(tokens, table), table[tokens])


def test_updates_and_members_that_stay(kernels: Any, plain: Any, kind: Any) -> None:
    def state() -> list[Any]:
        return [drawn(3, 70, seed=0), drawn(3, 70, seed=1), drawn(3, 70, seed=2).abs(), torch.zeros(3, 70, dtype=kind)]

    gradient = drawn(3, 70, kind=kind, seed=3)
    gradient[2] = float("nan")
    column = {name: drawn(3, 1, seed=4 + at).abs() for at, name in enumerate(("scale", "rate", "shortened"))}
    settings = torch.tensor([[0.9, 0.999, 1e-8, 0.01, 1.0]] * 3).split(1, dim=1)
    beta1, beta2, eps, decay, _ = settings
    moved, count = torch.tensor([[True], [True], [False]]), torch.tensor([[1.0], [7.0], [3.0]])
    given = (gradient, column["scale"], moved, column["rate"], column["shortened"], beta1, beta2, eps, decay, count)
    found, expected, before = state(), state(), state()
    kernels.move(*found, *given)
    plain.move(*expected, *given)
    same(found, expected)
    for one, two in zip(found[:3], before[:3], strict=True):
        assert torch.equal(one[2], two[2])


@pytest.mark.parametrize(("heads", "kv_heads", "width", "length"), [(4, 2, 16, 150), (2, 2, 64, 64), (3, 1, 32, 70)])
def test_attention_within_the_sequences_of_packed_rows(heads: int, kv_heads: int, width: int, length: int) -> None:
    segments = torch.zeros(2, length, dtype=torch.int32)
    for begin in (13, 40, 41, length - 1):
        segments[0, begin:] += 1
    # Padding has negative segments.
    segments[1, length // 2 :] = -1
    qkv = drawn(2, length, heads + 2 * kv_heads, width)
    gradient = drawn(2, length, heads * width, seed=1)
    found, expected = (
        attend(qkv, heads, kv_heads, mask_of(2, length, segments, layout), 0, keeps=True) for layout in ("ends", "mask")
    )
    same([found[0], *found[1](gradient)], [expected[0], *expected[1](gradient)])
