"""A script, never imported by Stoker: computes the same on the CPU and on each device that torch sees, and compares.

    python smoke_child.py

Prints one marked JSON object, whatever happens. It may run in an old interpreter: nothing is newer than Python 3.7.
"""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Any

MARK = "stoker-probe:"


def main() -> None:
    """Print what torch computes here."""
    if sys.path[:1] == [os.path.dirname(os.path.abspath(__file__))]:
        # Nothing beside this script may replace what torch imports.
        del sys.path[0]
    try:
        import torch  # noqa: PLC0415 - it may be missing
    except Exception as error:  # noqa: BLE001 - a broken one raises anything
        _say({"error": f"torch can't be imported: {_line(error)}"})
        return
    expected = _solve(torch, "cpu")
    rows = []
    for name, label in _devices(torch):
        row: dict[str, Any] = {"device": name, "name": label}
        try:
            row["cosine"] = _cosine(torch, expected, _solve(torch, name))
        except Exception as error:  # noqa: BLE001 - drivers raise anything
            row["error"] = _line(error)
        rows.append(row)
    _say({"torch": str(torch.__version__), "devices": rows})


def _devices(torch: Any) -> list[tuple[str, str]]:
    found = []
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        try:
            count = module.device_count() if module is not None and module.is_available() else 0
        except Exception:  # noqa: BLE001 - the same
            count = 0
        found += [(f"{kind}:{number}", _label(module, number)) for number in range(count)]
    mps = getattr(torch.backends, "mps", None)
    if mps is not None and mps.is_available():
        found.append(("mps", "Apple GPU"))
    return found


def _label(module: Any, number: int) -> str:
    try:
        return str(module.get_device_name(number))
    except Exception:  # noqa: BLE001 - the same
        return ""


def _solve(torch: Any, device: str) -> Any:
    """Return outputs and gradients of two small layers, the same on every device but for rounding."""
    generator = torch.Generator().manual_seed(20)
    x, first, second = (
        torch.randn(shape, generator=generator, dtype=torch.float32).to(device)
        for shape in ((48, 64), (64, 96), (96, 16))
    )
    first.requires_grad_()
    second.requires_grad_()
    outputs = torch.tanh(torch.relu(x @ first) @ second / 16)
    (outputs * outputs).mean().backward()
    parts = (outputs.detach(), first.grad, second.grad)
    return torch.cat([part.reshape(-1).cpu().double() / part.cpu().double().norm() for part in parts])


def _cosine(torch: Any, one: Any, other: Any) -> float:
    value = float(torch.dot(one, other) / (one.norm() * other.norm()))
    if math.isnan(value):
        raise ArithmeticError("it computed NaN")
    return value


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(MARK + json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
