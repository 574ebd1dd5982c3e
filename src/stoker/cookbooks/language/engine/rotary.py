"""Rotary positions: the angles of each frequency, as the families compute them."""

from __future__ import annotations

import math

import torch

from stoker.cookbooks.language.engine.shapes import Rotation


def tables(rotation: Rotation, head_dim: int, length: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Give cosines and sines, `[length, head_dim / 2]`, in 32 bits."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), _frequencies(rotation, head_dim))
    return (angles.cos() * rotation.attention).to(device), (angles.sin() * rotation.attention).to(device)


def _frequencies(rotation: Rotation, head_dim: int) -> torch.Tensor:
    plain = 1.0 / rotation.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if rotation.kind == "linear":
        return plain / rotation.factor
    if rotation.kind == "llama3":
        return _llama3(plain, rotation)
    if rotation.kind == "yarn":
        return _yarn(plain, rotation, head_dim)
    return plain


def _llama3(plain: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Slow waves are stretched, fast ones stay, those between are mixed."""
    length = 2 * math.pi / plain
    longest, shortest = rotation.original / rotation.low, rotation.original / rotation.high
    share = (rotation.original / length - rotation.low) / (rotation.high - rotation.low)
    mixed = (1 - share) * plain / rotation.factor + share * plain
    stretched = torch.where(length > longest, plain / rotation.factor, plain)
    is_between = (length >= shortest) & (length <= longest)
    return torch.where(is_between, mixed, stretched)


def _yarn(plain: torch.Tensor, rotation: Rotation, head_dim: int) -> torch.Tensor:
    def turn(count: float) -> float:
        span = rotation.original / (count * 2 * math.pi)
        return head_dim * math.log(span) / (2 * math.log(rotation.theta))

    low, high = turn(rotation.fast), turn(rotation.slow)
    if rotation.truncates:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
    return plain / rotation.factor * ramp + plain * (1 - ramp)
