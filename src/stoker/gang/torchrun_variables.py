"""The variables that a rank of a script finds: those that `torchrun --standalone` would give it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from stoker.model.closable import Closable

ADDRESS = "127.0.0.1"


def rank_variables(rank: int, nranks: int, *, port: int, run_id: str) -> dict[str, str]:
    """Give what differs from rank to rank, or is known only now."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "ROLE_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(nranks),
        "LOCAL_WORLD_SIZE": str(nranks),
        "ROLE_WORLD_SIZE": str(nranks),
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        # Rank 0 serves the store of whoever asks for that port, as without torchrun.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def speaks_for_all(environment: Mapping[str, str], rank: int) -> dict[str, str]:
    """Give what keeps metrics and last words of ranks but the first from a run of Stoker's around the gang."""
    if not rank or not environment.get("STOKER_CONTROL"):
        return {}
    return {"STOKER_CONTROL": os.devnull, "STOKER_METRICS": os.devnull}


def shared_variables(environment: Mapping[str, str], nranks: int) -> dict[str, str]:
    """Give the environment that all ranks have in common; libraries read it when they are imported."""
    made = {name: value for name, value in environment.items() if name != "TORCHELASTIC_ERROR_FILE"}
    made.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    if nranks > 1:
        # Else each rank would take all processors, and they would be in each other's way.
        made.setdefault("OMP_NUM_THREADS", "1")
    return made


class HeldPort(Closable):
    """A port that nobody else is given while this stands; who says SO_REUSEADDR, as torch does, can listen on it.

    Only a script that meets by address and port uses it: ours needs none.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(("", 0))
        except OSError:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        self._socket.close()
