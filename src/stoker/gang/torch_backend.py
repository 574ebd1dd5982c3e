"""How a rank selects its device and joins its group.

The store is a file in memory without a name, which every rank has open: no port, no thread, no folder, nothing to
clean up. The group's own time limits stay torch's; the bring-up's is kept by the gang's owner, who sees all ranks and
ends them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

# The owner's deadline comes first, so that it, who knows why, speaks first.
_MARGIN_S = 5.0
_BACKLOG = 1024


def select_device(device_id: int) -> None:
    """Select a GPU and see that it works, which makes its context."""
    torch.cuda.set_device(device_id)
    torch.cuda.synchronize()
    # What makes the context, beside what synchronising may leave for later.
    torch.empty(1, device="cuda").fill_(1)


def use_one_thread() -> None:
    """Limit torch to one CPU thread."""
    torch.set_num_threads(1)


def lone_store() -> Any:
    """Return a store that only this process knows."""
    return distributed.HashStore()


def make_store(fd: int, nranks: int, left_s: float) -> Any:
    """Return the store behind a descriptor that all ranks have. It has to stay open as long as the store is there."""
    store = distributed.FileStore(f"/proc/self/fd/{fd}" if os.path.isdir("/proc/self/fd") else f"/dev/fd/{fd}", nranks)
    store.set_timeout(timedelta(seconds=left_s + _MARGIN_S))
    return store


def hold_store(address: str, left_s: float) -> Any:
    """Make the store of several hosts in this process, at this address and a port that is free."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, 0), family=family, backlog=_BACKLOG)
    port = int(listener.getsockname()[1])
    # Torch closes it with the store. It would otherwise listen at every address of this host.
    return _tcp_store(address, port, left_s, is_master=True, master_listen_fd=listener.detach())


def reach_store(place: str, left_s: float) -> Any:
    """Return the store of several hosts, which is held at an address and port."""
    address, _, port = place.rpartition(":")
    return _tcp_store(address, int(port), left_s, is_master=False)


def _tcp_store(address: str, port: int, left_s: float, **more: Any) -> Any:
    timeout = timedelta(seconds=left_s + _MARGIN_S)
    return distributed.TCPStore(address, port, timeout=timeout, wait_for_workers=False, **more)


def join(backend: str, store: Any, rank: int, nranks: int, device: tuple[str, int]) -> None:
    """Join the group, and pass a first barrier: only then is it known to work."""
    kind, device_id = device
    bound = torch.device(kind, device_id) if backend == "nccl" else None
    distributed.init_process_group(
        backend, store=distributed.PrefixStore("group", store), rank=rank, world_size=nranks, device_id=bound
    )
    distributed.barrier()


def has_joined() -> bool:
    """Return whether this process is in a group."""
    return bool(distributed.is_initialized())


def leave() -> None:
    """Leave the group in order, which only NCCL asks for: the others end with the process."""
    if has_joined() and distributed.get_backend() == "nccl":
        distributed.destroy_process_group()


def destroy() -> None:
    """Leave the group so that this process could join another one."""
    if has_joined():
        distributed.destroy_process_group()


# Tensors over memory of a window.


def over_memory(view: memoryview, dtype: str) -> torch.Tensor:
    """Return a tensor over this computer's memory; it holds the view."""
    return torch.frombuffer(view, dtype=getattr(torch, dtype))


def over_device(base: int, nbytes: int, dtype: str, *, keep: object) -> torch.Tensor:
    """Return a tensor over memory of the current GPU; it holds `keep`."""
    shown = _Shown(base, nbytes, keep)
    flat: torch.Tensor = torch.as_tensor(shown, device="cuda")
    return flat.view(getattr(torch, dtype))


class _Shown:
    """Device memory as CUDA's array interface describes it."""

    def __init__(self, base: int, nbytes: int, keep: object) -> None:
        self._keep = keep
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (base, False),
            "version": 2,
        }


def all_reduced(values: Sequence[float]) -> list[float]:
    """Return the sums over all ranks, place by place, added up on each rank's device."""
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    total = torch.tensor(values, dtype=torch.float32, device=device)
    distributed.all_reduce(total)
    summed: list[float] = total.tolist()
    return summed
