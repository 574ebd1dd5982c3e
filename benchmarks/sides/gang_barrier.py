"""One rank, as any launcher starts it: joins its group, passes a barrier and writes down when that was.

    torchrun --standalone --nproc-per-node 8 gang_barrier.py FOLDER [BACKEND] [raise]

With `raise`, rank 1 writes down the time and raises while the others wait for it in their group.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def main(folder: str, backend: str = "gloo", how: str = "") -> None:
    rank = int(os.environ["RANK"])
    mark = Path(folder, str(rank))
    if how == "raise" and rank == 1:
        mark.write_text(repr(time.time()))
        raise RuntimeError("it is broken")
    import torch
    from torch import distributed

    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group(backend)
    distributed.barrier()
    mark.write_text(repr(time.time()))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
