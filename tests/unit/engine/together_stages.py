"""A stage whose attempts share one process, without any library: members count, each at its own pace."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker.authoring import JsonKind, Member, ProcessSharing, SharedContext, SoloContext, StageContext, arg, stage
from stoker.core.errors import Cancelled, StageDiverged
from stoker.core.retry import RetryPolicy


class Counted(JsonKind):
    """How far a member counted, and where."""

    name = "test/counted"


@dataclass(frozen=True)
class CountArgs:
    """How one member counts."""

    member: str = arg("", help="Who it is.")
    base: str = arg("base", help="What it has in common with others.")
    to: int = arg(3, help="How far it counts.")
    fails_at: int = arg(-1, help="Where it fails.")
    breaks_at: int = arg(-1, help="Where it takes the whole process along.")
    waits_for: str = arg("", help="Counts on only while this file is not there.", runtime=True)
    marks: str = arg("", help="A folder for a file per member that has joined.", runtime=True)


def same_base(args: CountArgs, _digests: Mapping[str, tuple[str, ...]]) -> str:
    return args.base


def count_together(shared: SharedContext) -> None:
    """Count for everybody who is there, one each per round."""
    counts: dict[Member, int] = {}
    while not shared.is_over:
        for member in shared.new_members(0.002 if counts else 0.5):
            counts[member] = _kept(member)
            print(f"joined {member.args.member}, at most {shared.ceiling_bytes} bytes, {shared.in_pass} in a pass")
            if member.args.marks:
                Path(member.args.marks, f"{member.args.member}.{os.getpid()}").touch()
        for member in list(counts):
            _count_one(member, counts)


def _count_one(member: Member, counts: dict[Member, int]) -> None:
    args: CountArgs = member.args
    try:
        member.job.check()
        if args.waits_for and not Path(args.waits_for).exists():
            return
        counts[member] += 1
        if counts[member] == args.fails_at:
            raise StageDiverged(f"{args.member} diverged")
        if counts[member] == args.breaks_at:
            os._exit(7)
        member.job.step(counts[member], of=args.to, count=float(counts[member]))
        member.job.scratch.joinpath("count").write_text(str(counts[member]))
        if counts[member] >= args.to:
            body = {"member": args.member, "count": counts[member], "process": os.getpid(), "number": member.number}
            member.job.tell(f"{args.member} is done", at_once=True)
            member.finished(member.job.save(Counted, body))
            del counts[member]
    except (Cancelled, StageDiverged, OSError) as error:
        del counts[member]
        member.failed(error)


def _kept(member: Member) -> int:
    kept = member.job.scratch / "count"
    return int(kept.read_text()) if kept.exists() else 0


@stage(
    "test/count",
    together=ProcessSharing(run="tests.unit.engine.together_stages:count_together", key=same_base),
    retry=RetryPolicy(attempts=3, backoff_s=0.0),
)
def count(job: StageContext, args: CountArgs) -> Counted:
    """Count, alone."""
    alone = SoloContext(job, {}, args)
    count_together(alone)
    made: Counted = alone.result()
    return made


@stage("test/hang", together=ProcessSharing(run="tests.unit.engine.together_stages:hang", key=same_base))
def hanging(job: StageContext, args: CountArgs) -> Counted:
    """Never ends."""
    hang(SoloContext(job, {}, args))
    return job.made(Counted)


def hang(shared: SharedContext) -> None:
    """Admit whoever comes, and never look at them again."""
    while not shared.new_members(1.0):
        pass
    time.sleep(600)


@stage("test/broken", together=ProcessSharing(run="tests.unit.engine.together_stages:break_down", key=same_base))
def broken(job: StageContext, args: CountArgs) -> Counted:
    """Fails, alone, too."""
    break_down(SoloContext(job, {}, args))
    return job.made(Counted)


def break_down(shared: SharedContext) -> None:
    """Wait for somebody, and fail for everybody."""
    shared.new_members(10.0)
    message = "nothing works"
    raise RuntimeError(message)


@stage("test/greedy", together=ProcessSharing(run="tests.unit.engine.together_stages:eat", key=same_base))
def greedy(job: StageContext, args: CountArgs) -> Counted:
    """Takes more memory than there is."""
    eat(SoloContext(job, {}, args))
    return job.made(Counted)


def eat(shared: SharedContext) -> None:
    """Take memory until somebody objects."""
    shared.new_members(10.0)
    print("hungry")
    eaten = []
    while True:
        eaten.append(b"x" * (1 << 24))
        time.sleep(0.005)
