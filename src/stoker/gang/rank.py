"""What the process of a rank does: its phases in order, each published as it begins; then calls, until it is closed.

    FORKED → DEVICE → STORE → COMM → WINDOW → STAGING → READY ⇄ RUN

Whatever goes wrong is published with its phase and traceback, and the process leaves at once, with 1: taking a
communicator apart while peers are in trouble is how gangs hang.
"""

from __future__ import annotations

import atexit
import faulthandler
import logging
import os
import pickle
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn, Protocol

from stoker.core import jsontext
from stoker.core.clock import SystemClock
from stoker.gang import rank_context, script_boot
from stoker.gang.gang_plan import CALLS, ERR, OUT, STAGING, STORE, WINDOWS, RankPlan
from stoker.gang.mailbox import CRASH_AT, Phase, Publisher, RankWindowInfo, Slot, read_at, unnamed_memory, write_at
from stoker.gang.rank_context import Context, RankPointer, ThisRank, phases_of
from stoker.gang.rank_messages import FrameKind, prepare_main, receive, send
from stoker.gang.rank_processes import LIFE, MAILBOX, WAKE, WHERE_SIGNAL
from stoker.gang.windows import CudaWindows, Driver, HostWindows, RankWindows, WindowBlock
from stoker.host.identity import hold_on
from stoker.host.import_watch import entry_point


def draw_anew() -> None:
    """Seed what is imported already from the machine's own randomness.

    Python's own generator sees to that itself. Those of numpy and torch are copied with everything else, so that all
    ranks would draw the same, and those of the next gang the same again.
    """
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    # That of each CUDA device begins with one fixed seed wherever it begins. What only has torch's name has none.
    generator = getattr(sys.modules.get("torch"), "default_generator", None)
    if generator is not None:
        generator.seed()


_PEERS_WAIT_S = 5.0
_PEERS_LOOK_S = 0.005
# The frames between a call and the work.
_OUR_MODULES = frozenset({"stoker.gang.rank", "stoker.gang.owner"})


class Store(Protocol):
    """What a rank needs of torch's store."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def add(self, key: str, amount: int) -> int: ...


class GangRank:
    """One rank, brought up phase by phase."""

    def __init__(self, plan: RankPlan, publisher: Publisher, fds: Mapping[str, int]) -> None:
        self._plan = plan
        self._publisher = publisher
        self._fds = fds
        self._store: Store | None = None
        self._block: WindowBlock | None = None
        self._shown = RankWindowInfo()
        self._on_phase: Callable[[str, int], object] = entry_point(plan.on_phase) if plan.on_phase else lambda *_: None

    def bring_up(self) -> None:
        """Go through all phases; what fails is raised, and its phase is the one published last."""
        self._on_phase(Phase.FORKED.name, self._plan.rank)
        for phase, step in (
            (Phase.DEVICE, self._take_device),
            (Phase.STORE, self._open_store),
            (Phase.COMM, self.join if not self._plan.is_lazy else lambda: None),
            (Phase.WINDOW, self._make_window),
            (Phase.STAGING, self._stage_in),
        ):
            self._publisher.begin(phase)
            self._on_phase(phase.name, self._plan.rank)
            step()
        rank_context.become(self._seen_from_inside())
        self._publisher.ready(self._shown)

    def call(self, payload: bytes) -> bytes:
        """Do one call: give the pickled result."""
        self._publisher.begin(Phase.RUN)
        main, pickled = pickle.loads(payload)  # noqa: S301 - from our owner, whose code we are
        prepare_main(main)
        function, arguments = pickle.loads(pickled)  # noqa: S301 - the same
        result = pickle.dumps(function(*arguments), protocol=pickle.HIGHEST_PROTOCOL)
        self._publisher.begin(Phase.READY)
        return result

    def stage_out(self) -> None:
        """Copy what is to be stored to where the owner can read it."""
        own = self._plan.places[self._plan.rank]
        for name, at in self._plan.staged_out:
            if self._block is not None:
                write_at(self._fds[STAGING], self._block.read(own[name].offset, own[name].nbytes), at)

    def close(self) -> None:
        """Release in order: windows, then the communicator."""
        from stoker.gang import torch_backend  # noqa: PLC0415 - torch, which this process has already

        self._publisher.closing()
        own = rank_context.this_rank()
        own.close_peers()
        if self._plan.device_kind == "cuda":
            self._wait_for_peers()
        own.close()
        rank_context.become(None)
        torch_backend.leave()
        self._publisher.closed()

    def _wait_for_peers(self) -> None:
        """Wait until no peer has our window open any more: CUDA does not say what freeing it sooner would do."""
        clock = SystemClock()
        deadline_s = clock.monotonic_s() + _PEERS_WAIT_S
        if self._store is None or self._store.add("window/left", 1) == self._plan.nranks:
            return
        while self._store.add("window/left", 0) < self._plan.nranks and clock.monotonic_s() < deadline_s:
            clock.sleep(_PEERS_LOOK_S)

    def join(self) -> None:
        """Make the communicator, unless it is there."""
        from stoker.gang import torch_backend  # noqa: PLC0415 - see above

        plan = self._plan
        if self._store is not None and not torch_backend.has_joined():
            device = (plan.device_kind, plan.device_id)
            torch_backend.join(plan.backend, self._store, plan.rank, plan.nranks, device)

    def _take_device(self) -> None:
        from stoker.gang import torch_backend  # noqa: PLC0415 - see above

        plan = self._plan
        if plan.device_kind == "cuda":
            torch_backend.select_device(plan.device_id)
            self._shown = RankWindowInfo(device_ctx=Driver().context())

    def _open_store(self) -> None:
        from stoker.gang import torch_backend  # noqa: PLC0415 - see above

        left_s = max(0.0, (self._plan.deadline_ns - time.monotonic_ns()) / 1e9)
        address = self._plan.store_address
        if STORE not in self._fds and not address:
            self._store = torch_backend.lone_store()
            return
        if not address:
            self._store = torch_backend.make_store(self._fds[STORE], self._plan.nranks, left_s)
            return
        held = torch_backend.hold_store(address, left_s) if self._plan.rank == 0 else None
        if held is not None:
            self._publisher.show_place(f"{address}:{held.port}")
        place = _told_place(self._fds[CALLS])
        self._store = held or torch_backend.reach_store(place, left_s)

    def _make_window(self) -> None:
        plan = self._plan
        slots = tuple(Slot(offset=place.offset, nbytes=place.nbytes) for place in plan.places[plan.rank].values())
        context = self._shown.device_ctx
        if not plan.window_bytes:
            self._shown = RankWindowInfo(device_ctx=context)
            return
        windows = self._windows()
        self._block, handle = windows.allocate(plan.window_bytes)
        if self._store is not None:
            self._store.set(f"window/{plan.rank}", handle.hex())
        self._shown = RankWindowInfo(
            device_ctx=context,
            base=self._block.base,
            requested_bytes=plan.window_bytes,
            actual_bytes=self._block.actual_bytes,
            handle_kind=windows.kind,
            handle=handle,
            slots=slots,
        )

    def _windows(self) -> RankWindows:
        if self._plan.device_kind == "cpu":
            return HostWindows(self._fds[WINDOWS], self._plan.region)
        return CudaWindows()

    def _stage_in(self) -> None:
        own = self._plan.places[self._plan.rank]
        for name, at in self._plan.staged_in:
            if self._block is not None:
                data = read_at(self._fds[STAGING], own[name].nbytes, at)
                self._block.fill(own[name].offset, memoryview(data))

    def _open_peer(self, rank: int) -> WindowBlock:
        if self._store is None:
            message = "the windows are not there yet"
            raise RuntimeError(message)
        handle = bytes.fromhex(self._store.get(f"window/{rank}").decode())
        return self._windows().open(handle)

    def _seen_from_inside(self) -> ThisRank:
        plan, shown = self._plan, self._shown
        own = plan.places[plan.rank]
        context = Context(
            device_id=plan.device_id,
            rank=plan.rank,
            nranks=plan.nranks,
            device_ctx=RankPointer(shown.device_ctx, plan.rank),
            local_window_base=RankPointer(shown.base, plan.rank),
            actual_window_size=shown.actual_bytes,
            buffer_ptrs={name: RankPointer(shown.base + place.offset, plan.rank) for name, place in own.items()},
            phases_s=phases_of(self._publisher.page.stamps_ns),
            pid=os.getpid(),
        )
        return ThisRank(context, plan.places, self._block, self._open_peer, self.join)


def run_rank(request: Mapping[str, Any]) -> None:
    """Be a rank until asked to end. Returns after an orderly close; everything else leaves the process at once."""
    fds = request["fds"]
    hold_on(fds[LIFE])
    forget_exits()
    plan = RankPlan.from_request(request)
    publisher = Publisher(fds[MAILBOX], fds[WAKE], rank=plan.rank, nranks=plan.nranks, device_id=plan.device_id)
    try:
        publisher.begin(Phase.FORKED)
        watch_for_crashes(fds[MAILBOX])
        take_surroundings(request, fds)
        draw_anew()
        _share_processors(plan.nranks, request["environ"].get("OMP_NUM_THREADS"))
        rank = GangRank(plan, publisher, fds)
        rank.bring_up()
        _serve(rank, socket.socket(fileno=fds[CALLS]))
    except BaseException as error:  # noqa: BLE001 - whatever ends this rank is published
        publisher.fail(error, hidden_frames=own_frames(error))
        leave(1)


def forget_exits() -> None:
    """Keep what the zygote's libraries registered for its end from running at ours: it takes longer than a bring-up."""
    atexit._clear()  # noqa: SLF001 - public in all but spelling, as those that the end of a fork calls
    atexit.register(logging.shutdown)


def take_surroundings(request: Mapping[str, Any], fds: Mapping[str, int]) -> None:
    """Take over what the owner has: its variables, its import path, its output."""
    # The zygote's are older. They are the work's, and no setting of ours is read from them here.
    variables = os.environ  # noqa: TID251 - see above
    wanted = request["environ"]
    for name in [name for name in variables if name not in wanted]:
        del variables[name]
    variables.update(wanted)
    sys.path[:] = request["sys_path"]
    for name, number in ((OUT, 1), (ERR, 2)):
        if name in fds:
            os.dup2(fds[name], number)
            os.close(fds[name])


def watch_for_crashes(mailbox_fd: int) -> None:
    """Write the traceback of a native crash, or on request, into the mailbox."""
    path = f"/proc/self/fd/{mailbox_fd}"
    if not os.path.exists(path):
        return
    # A file description of its own, with a position of its own. Open until the process ends.
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    os.lseek(fd, CRASH_AT, os.SEEK_SET)
    faulthandler.enable(fd, all_threads=False)
    if WHERE_SIGNAL is not None:
        faulthandler.register(WHERE_SIGNAL, fd, all_threads=False)


def _share_processors(nranks: int, threads: str | None) -> None:
    """Keep ranks from taking each other's processors, as torchrun does, if the number of threads is not set."""
    if nranks > 1 and not threads:
        from stoker.gang import torch_backend  # noqa: PLC0415 - torch, which this process has already

        torch_backend.use_one_thread()


def own_frames(error: BaseException) -> int:
    """Count the frames of ours that stand above the work's own in a traceback."""
    count = 0
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals.get("__name__") in _OUR_MODULES:
        count += 1
        trace = trace.tb_next
    return count if trace is not None else 0


def leave(status: int) -> NoReturn:
    """End this process now, with what it has printed, and without taking anything apart."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(status)


def _serve(rank: GangRank, calls: socket.socket) -> None:
    while (frame := receive(calls)) is not None:
        if frame.kind is FrameKind.CALL:
            send(calls, FrameKind.ANSWER, rank.call(frame.payload))
        elif frame.kind is FrameKind.STORE:
            rank.stage_out()
            send(calls, FrameKind.ANSWER)
        elif frame.kind is FrameKind.CLOSE:
            rank.stage_out()
            rank.close()
            return
    # The owner is gone; the life line tells the same.
    leave(1)


def _told_place(fd: int) -> str:
    """Wait until the owner says where the store is: it knows when one of another host has made it."""
    with socket.socket(fileno=os.dup(fd)) as calls:
        frame = receive(calls)
    if frame is None:
        leave(1)
    return frame.payload.decode()


# Where the process of a script's rank begins: it takes over its surroundings, and runs the script or becomes another.
#
# Both begin in a process that our own interpreter made (see `starters`). The first runs the script right there. The
# second becomes another program: a foreign interpreter, which is started on `script_boot`, or anything else, which gets
# the environment and nothing more. The life line and the parent-death signal stay with the process whatever it becomes.

RUN_HERE = "stoker.gang.rank:run_here"
BECOME = "stoker.gang.rank:become"


def run_here(request: Mapping[str, Any]) -> NoReturn:
    """Run the script in this process; ends as the script does."""
    fds, order = request["fds"], request["order"]
    publisher = _begin(request)
    watch_for_crashes(fds[MAILBOX])
    take_surroundings(request, fds)
    draw_anew()
    order = {**order, "store_fd": fds[STORE], "is_forked": True}
    sys.exit(script_boot.run(order, publisher))


def become(request: Mapping[str, Any]) -> NoReturn:
    """Become the program; raises `OSError` if it can't be."""
    fds, order, argv = request["fds"], request["order"], list(request["argv"])
    publisher = _begin(request)
    take_surroundings(request, fds)
    kept = [fds[LIFE]]
    if order is not None:
        numbers = {f"{name}_fd": fds[name] for name in (MAILBOX, WAKE, STORE)}
        body = jsontext.dumps({**order, **numbers}).encode()
        order_fd = unnamed_memory("stoker-script-order", len(body))
        os.pwrite(order_fd, body, 0)
        kept += [order_fd, *numbers.values()]
        argv = [*argv, os.path.abspath(script_boot.__file__), str(order_fd)]
    else:
        # It can't say more: from here on it runs.
        publisher.begin(Phase.RUN)
    for fd in kept:
        os.set_inheritable(fd, True)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(argv[0], argv)
    except OSError as error:
        publisher.fail(error)
        os._exit(1)


def _begin(request: Mapping[str, Any]) -> Publisher:
    fds, rank = request["fds"], request["rank"]
    hold_on(fds[LIFE])
    publisher = Publisher(fds[MAILBOX], fds[WAKE], rank=rank, nranks=request["nranks"], device_id=rank)
    publisher.begin(Phase.FORKED)
    return publisher
