from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

# Its modules import torch, and the reference is PEFT.
collect_ignore_glob = [] if find_spec("torch") and find_spec("peft") else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def quick_small_products() -> Iterator[None]:
    """One thread, and no oneDNN: the reference takes a third of the time."""
    import torch

    before = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False
    yield
    torch.set_num_threads(before[0])
    torch.backends.mkldnn.enabled = before[1]
