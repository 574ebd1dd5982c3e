"""A program that makes owners of gangs by the dozen, to be killed: torch is imported once, and each is forked from it.

Each owner has a zygote of its own, forked too, which runs what a started one runs. Orders come in lines: `loop` makes
an owner that brings gangs up, uses and closes them for ever; `reap` waits for its end; `at once N` makes N owners that
bring four gangs up each, at the same time, and waits for them. Every order is answered by a line.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import cast

from stoker.gang import Gang, RankConfig
from stoker.gang.starters import PRELOAD, RankZygote
from stoker.host import zygote_main
from stoker.host.sockets import Channel
from stoker.host.zygote import Zygote
from tests.fault import gang_acts as acts


class ForkedProcess:
    """What a `Zygote` asks of its process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, _timeout_s: float) -> int:
        return os.waitpid(self.pid, 0)[1]


def forked_zygote() -> Zygote:
    """Do what `Zygote.start` does, without the seconds that a new interpreter needs to import torch."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            os.setsid()
            zygote_main.main(theirs.detach())
        finally:
            os._exit(0)
    theirs.close()
    process = cast("subprocess.Popen[bytes]", ForkedProcess(pid))
    log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the zygote
    zygote = Zygote(process, Channel(ours), log)
    zygote._greet(PRELOAD, linger_s=1.0)
    return zygote


def warm() -> RankZygote:
    made = RankZygote(env=dict(os.environ), cwd=os.getcwd(), sys_path=sys.path)
    made._zygote = forked_zygote()
    return made


def loop() -> None:
    here = warm()
    while True:
        with Gang([RankConfig(0), RankConfig(1)], warm=here) as gang:
            for number in range(3):
                assert gang.run(acts.add, number) == [2.0 * number] * 2


def four() -> None:
    here = warm()

    def one(number: int) -> list[float]:
        with Gang([RankConfig(0), RankConfig(1)], warm=here) as gang:
            return gang.run(acts.add, number)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(4))) == [[2.0 * number] * 2 for number in range(4)]
    here.close()


def forked(act: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        act()
        status = 0
    except BaseException:  # noqa: BLE001 - there is nobody above us
        traceback.print_exc()
    finally:
        os._exit(status)


def main() -> None:
    for name in PRELOAD:
        import_module(name)
    # The first call writes a file to try the folder, and an owner that is killed meanwhile would leave it behind.
    tempfile.gettempdir()
    # What owners share is not looked through again by each.
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    owner = 0
    while order := sys.stdin.readline().split():
        if order == ["loop"]:
            owner = forked(loop)
            print(owner, flush=True)
        elif order == ["reap"]:
            print(os.waitstatus_to_exitcode(os.waitpid(owner, 0)[1]), flush=True)
        else:
            owners = [forked(four) for _ in range(int(order[-1]))]
            print(*[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in owners], flush=True)


if __name__ == "__main__":
    main()
