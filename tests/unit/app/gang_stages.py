"""Stages that run as ranks of a gang, and how they go wrong."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass

from stoker.authoring import StageContext, arg, stage
from stoker.core.device import Needs
from tests.unit.engine.stages import Number, note


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedArgs:
    how: str = arg("")
    ledger: str = arg("", runtime=True)


@stage("test/shared", needs=Needs(ranks=2), diverges_on=("sum",))
def shared_sum(job: StageContext, args: SharedArgs) -> Number:
    """Add up what the ranks have; rank 1 may go wrong while rank 0 waits for it."""
    import torch
    from torch import distributed

    rank = distributed.get_rank()
    note(args.ledger, str(os.getpid()))
    job.log(f"rank {rank} of {distributed.get_world_size()}")
    if rank == 1:
        if args.how == "raise":
            raise ValueError("it is broken")
        if args.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if args.how == "wait":
            time.sleep(600)
    told = torch.tensor([float(rank + 1)])
    distributed.all_reduce(told)
    job.step(1, of=1, sum=told.item())
    if rank == 0:
        job.save(Number, int(told.item()))
    distributed.barrier()
    return job.made(Number)
