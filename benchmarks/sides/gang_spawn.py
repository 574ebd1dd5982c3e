"""The same ranks started by torch.multiprocessing.spawn, as its manual shows it.

python gang_spawn.py FOLDER RANKS
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import gang_barrier


def rank(number: int, folder: str, count: str) -> None:
    os.environ.update(RANK=str(number), LOCAL_RANK=str(number), WORLD_SIZE=count)
    gang_barrier.main(folder)


if __name__ == "__main__":
    from torch import multiprocessing

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[3])
    Path(sys.argv[1]).mkdir(exist_ok=True)
    multiprocessing.spawn(rank, args=(sys.argv[1], sys.argv[2]), nprocs=int(sys.argv[2]))
