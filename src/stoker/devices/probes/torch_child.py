"""A script, never imported by Stoker: queries the torch of a user's interpreter, in a process of its own.

    python torch_child.py

Prints where torch is before it is imported, what it is before it touches a device, and then the devices that it sees
and whether it can compute there: if one step hangs or crashes, the earlier ones are printed. It may run in an old
interpreter: nothing here is newer than Python 3.7.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from typing import Any

MARK = "stoker-probe:"
_SMALL = 4


def main() -> None:
    """Print the results, step by step."""
    if sys.path[:1] == [os.path.dirname(os.path.abspath(__file__))]:
        # Nothing beside this script may replace what torch imports.
        del sys.path[0]
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.origin:
        _say({"missing": "torch"})
        return
    _say({"found": spec.origin})
    try:
        import torch  # noqa: PLC0415 - the first thing that may fail or hang

        _say({"torch": torch.__version__, "cuda": torch.version.cuda, "hip": getattr(torch.version, "hip", None)})
        _say({"devices": _devices(torch), "metal": _metal(torch)})
    except BaseException as error:  # noqa: BLE001 - a broken installation or driver may raise anything
        _say({"error": _short(error)})


def _devices(torch: Any) -> list[dict[str, Any]]:
    if not torch.cuda.is_available():
        if torch.version.cuda or getattr(torch.version, "hip", None):
            # A check only returns False; this raises the reason.
            torch.cuda.init()
        return []
    return [_device(torch, index) for index in range(torch.cuda.device_count())]


def _device(torch: Any, index: int) -> dict[str, Any]:
    row: dict[str, Any] = {"index": index}
    try:
        about = torch.cuda.get_device_properties(index)
        row.update(name=about.name, total=about.total_memory, capability=[about.major, about.minor])
        row["uuid"] = str(getattr(about, "uuid", ""))
        row["gcn"] = str(getattr(about, "gcnArchName", ""))
        if hasattr(about, "pci_bus_id"):
            domain, slot = getattr(about, "pci_domain_id", 0), getattr(about, "pci_device_id", 0)
            row["pci"] = f"{domain:04x}:{about.pci_bus_id:02x}:{slot:02x}.0"
        if hasattr(torch.cuda, "mem_get_info"):
            row["free"] = torch.cuda.mem_get_info(index)[0]
        ones = torch.ones(_SMALL, _SMALL, device=f"cuda:{index}")
        row["works"] = float((ones @ ones).sum().item()) == float(_SMALL**3)
    except BaseException as error:  # noqa: BLE001 - a broken device must not hide the others
        row["error"] = _short(error)
    return row


def _metal(torch: Any) -> bool:
    backend = getattr(torch.backends, "mps", None)
    return bool(backend is not None and backend.is_available())


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"


def _say(body: dict[str, Any]) -> None:
    sys.stdout.write(MARK + json.dumps(body) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
