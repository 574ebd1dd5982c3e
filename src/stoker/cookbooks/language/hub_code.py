"""Code of the hub: none of it runs in our processes.

Importing this module imports no library.
"""

from __future__ import annotations

import sys
from typing import Any


def forbid_hub_code() -> None:
    """Hide the library `kernels`, with which transformers downloads and runs code, from this process.

    Call it before transformers is imported. `USE_HUB_KERNELS=0` is not enough: some families, and attention named in a
    config.json, load kernels whatever it is.
    """
    modules: dict[str, Any] = sys.modules
    modules["kernels"] = None
