"""A cookbook for tests of working together: voices that sing one song in one process, each until its gate opens.

Every voice writes how far it is into its scratch folder, and goes on from there; into `gate` it writes which process it
is in. It ends when `gate` holds a file of its number.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stoker.authoring import (
    Category,
    Cookbook,
    InputPath,
    JsonKind,
    Member,
    Needs,
    Plan,
    PlanBuilder,
    ProcessSharing,
    RetryOn,
    RetryPolicy,
    SharedBase,
    SharedContext,
    SoloContext,
    StageContext,
    arg,
    recipe,
    stage,
)
from stoker.core.errors import StokerError
from stoker.engine.stage import Digests

MIB = 1024**2


class Sung(JsonKind):
    name = "choir/sung"


@dataclass(frozen=True, slots=True, kw_only=True)
class SingArgs:
    song: InputPath = arg(help="what all sing")
    voice: int = arg(help="which voice", ge=1)
    gate: str = arg(help="a folder: of what it sings in, and when it may end", runtime=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoirArgs:
    song: str = arg(help="a file: what all sing")
    voice: int = arg(help="which voice", ge=1)
    gate: str = arg(help="a folder: of what it sings in, and when it may end", runtime=True)
    gpus: int | None = arg(None, help="1: on a device; null: on one if there is one", runtime=True)


def same_song(_args: SingArgs, digests: Digests) -> str:
    (song,) = digests["song"]
    return song[-16:]


def shared_by_choir(args: ChoirArgs, digest_of: Callable[[str], str]) -> SharedBase:
    return SharedBase(
        share_key=digest_of(args.song)[-16:],
        base_bytes=200 * MIB,
        member_bytes=10 * MIB,
        base_ram_bytes=200 * MIB,
        member_ram_bytes=10 * MIB,
    )


def sing_together(shared: SharedContext) -> None:
    """Sing a verse of each voice in turn."""
    members: list[Member] = []
    while not shared.is_over:
        members += shared.new_members(wait_s=0.02)
        for member in members:
            _verse(member)
        members = [member for member in members if member.is_active]


def _verse(member: Member) -> None:
    args, notes = member.args, member.job.scratch / "verses"
    verse = int(notes.read_text()) + 1 if notes.exists() else 1
    try:
        member.job.step(verse, of=None, voice=args.voice, process=os.getpid(), devices=len(member.job.devices))
        _replace(notes, str(verse))
        _replace(Path(args.gate, f"{args.voice}.singing"), f"{os.getpid()} {verse}")
        if Path(args.gate, str(args.voice)).exists():
            sung = {"voice": args.voice, "song": Path(args.song).read_text(), "devices": len(member.job.devices)}
            member.finished(member.job.save(Sung, sung))
    except StokerError as error:
        member.failed(error)


def _replace(path: Path, text: str) -> None:
    # Whole or not at all: tests kill the process at any moment, and read while it sings.
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)


@stage(
    "choir/sing",
    retry=RetryPolicy(attempts=3, backoff_s=0.01, on=RetryOn.INTERRUPTED),
    together=ProcessSharing(run="stoker_choir:sing_together", key=same_song),
)
def sing(job: StageContext, args: SingArgs) -> Sung:
    """Sing alone."""
    alone = SoloContext(job, {}, args)
    sing_together(alone)
    made: Sung = alone.result()
    return made


@recipe("choir/voice", version=1, category=Category.TRAIN, output=Sung, shares=shared_by_choir)
def voice(args: ChoirArgs) -> Plan:
    """One voice of a choir."""
    settings = SingArgs(song=InputPath(args.song), voice=args.voice, gate=args.gate)
    needs = Needs(gpu=1, vram_gib=210 / 1024, base_gib=200 / 1024, shares=True) if args.gpus else Needs()
    return PlanBuilder("voice").start(sing, settings, needs=needs).finish()


COOKBOOK = Cookbook(name="choir", recipes=(voice,), stages=(sing,), kinds=(Sung,))
