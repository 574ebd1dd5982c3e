"""What the tests of gangs run in ranks, and what ranks do at the beginning of a phase."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys

from stoker.gang import this_rank

VICTIM = "STOKER_TEST_VICTIM"


def whoami():
    rank = this_rank()
    return rank.rank, rank.nranks, os.getpid(), os.getsid(0)


def add(number):
    import torch
    from torch import distributed

    total = torch.tensor([float(number * (this_rank().rank + 1))])
    distributed.all_reduce(total)
    return total.item()


def echo(*things):
    return things


def surroundings(name):
    import torch

    return os.environ.get(name), os.getcwd(), torch.get_num_threads(), sys.path[0]


def context():
    return this_rank().context


def write_to_next(name, text):
    """Write into the window of the next rank, and give what the one before has written into ours."""
    from torch import distributed

    rank = this_rank()
    peer = rank.peer_buffer((rank.rank + 1) % rank.nranks, name)
    peer[: len(text) + 1] = text + str(rank.rank).encode()
    distributed.barrier()
    return bytes(rank.buffer(name)[: len(text) + 1])


def fill(name, value):
    this_rank().tensor(name).fill_(value)


def read(name):
    return bytes(this_rank().buffer(name))


def as_list(name):
    return this_rank().tensor(name).tolist()


def ask_for(rank, name):
    this_rank().peer_buffer(rank, name)


def join_late():
    from torch import distributed

    before = distributed.is_initialized()
    this_rank().communicator()
    this_rank().communicator()
    return before, distributed.get_world_size()


def spoil_the_end():
    """Make the window go away under what is to be stored at the close."""
    this_rank().close()


def say(text):
    print(text, this_rank().rank)


def unpicklable():
    return lambda: None


def fail_on(rank, how, *, others="barrier"):
    """Fail on one rank; the others wait for it."""
    if this_rank().rank == rank:
        fault(how)
    if others == "barrier":
        from torch import distributed

        distributed.barrier()
    elif others == "hang":
        hang()


def fail_everywhere():
    message = f"of {this_rank().rank}"
    raise ValueError(message)


def tear_down_then_fail(rank):
    """Take the group apart before the error gets out, as a `finally` in many a script does."""
    from torch import distributed

    if this_rank().rank == rank:
        try:
            raise ValueError("the real one")
        finally:
            distributed.destroy_process_group()
    distributed.barrier()


def leave_a_child_and_fail(path):
    child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    with open(path, "a", encoding="ascii") as file:
        file.write(f"{child.pid}\n")
    add(1)
    fail_on(1, "raise")


def ignore_requests_to_end_and_fail():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fail_on(1, "raise", others="hang")


def fault(how):
    if how == "raise":
        raise ValueError("no such column")
    if how == "exit":
        os._exit(3)
    if how == "sys.exit":
        sys.exit(3)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "segv":
        ctypes.string_at(0)
    if how == "hang":
        hang()


def hang():
    while True:
        select.select([], [], [], 100)


def say_so_and_hang(path):
    with open(path, "a", encoding="ascii"):
        pass
    hang()


def fault_in_phase(phase, rank):
    """For `on_phase`: do what the variable says, `rank phase how`."""
    victim, where, how = os.environ[VICTIM].split()
    if (phase, rank) == (where, int(victim)):
        fault(how)
