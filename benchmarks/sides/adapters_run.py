"""On a machine with a GPU: how fast a whole `stoker run` trains eight adapters over one base, with all that a run does.

    PYTHONPATH=src python benchmarks/sides/adapters_run.py OUT.json [--only PART,PART] [--limit SECONDS] [--tiny]

    8x512, 8x2048, 8x8192       8 settings of rank 16, rows of 512 tokens; tokens of each in a step
    packed-512, packed-2048     the same with texts of 60 to 500 tokens, packed into rows of 512
    ragged-2048                 four such texts of each in a step, not packed
    apart-2048                  the same, and each adapter sees them in an order of its own
    mixed-2048                  ranks 8, 16, 32 and 64, texts of 60 to 1,000 tokens packed into two rows of 1,024, a
                                twentieth held out and evaluated every 40 updates: what a user's run does
    nf4-512                     like 8x512, over the base in four bits, while another process leaves 24 GB of the card
    engine-512, -2048, -8192    the engine alone at 8x512 and so on, for comparison

`--shape` takes a base of another shape (`adapters_cases.SHAPES`); what is told of it is below its name. Stoker must be
installed, or be found by its entry points. Each part begins in an empty home. `tokens_per_s` is what was trained from a
quarter of the updates to the last report before the end, over the time between: after compiling, not after all
recording. `whole_s` is all of the command, `first_update_s` what passed before anything was trained, and `pauses` are
the longest times between two reports after it, each with the update that it ended with.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parent.parent)]
import gpu_parts  # noqa: E402 - found by the line above, from wherever this is started
from adapters_cases import MEMBERS, RANK, SEQUENCE, SHAPES, SIZES  # noqa: E402 - the same
from adapters_company import Side  # noqa: E402 - the same
from gpu_parts import Say  # noqa: E402 - the same

UPDATES = {512: 400, 2048: 150, 8192: 60}
LETTERS = 600_000
"""Of text, a token each: the tokenizer is that of the bundled base."""
FULL, RAGGED = (90, 120), (10, 75)
"""Words of one text: more than go into a row, which are cut; or less."""
LONG = (10, 150)
OPTIONS = ("train_on=all",)
_PAUSES = 12
ONCE = ("eval_every=1000000", "holdout_percent=1")
OFTEN = ("eval_every=40", "holdout_percent=5")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is run."""

    size: int
    words: tuple[int, int] = FULL
    is_packed: bool = False
    sequence: int = SEQUENCE
    updates: int = 0
    """0: by the size."""
    tried: tuple[str, ...] = ("lr=" + ",".join(f"{1 + number}e-5" for number in range(MEMBERS)), f"rank={RANK}")
    looks: tuple[str, ...] = ONCE
    more: tuple[str, ...] = ()
    room_bytes: int = 0
    """What another process leaves of the device, with the context of the driver; 0: all."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, help="made unless it is there (default: in /tmp)")
    parser.add_argument("--shape", choices=SHAPES, default="llama-1.1g", help="of the base")
    given = gpu_parts.parse(parser)
    is_usual = given.shape == "llama-1.1g"
    base = given.base or Path("/tmp/adapters-base" if is_usual else f"/tmp/adapters-base-{given.shape}")  # noqa: S108 - large, and wanted again
    cases = {
        **{f"{MEMBERS}x{size}": Case(size=size) for size in SIZES},
        **{f"packed-{size}": Case(size=size, words=RAGGED, is_packed=True) for size in SIZES[:2]},
        "ragged-2048": Case(size=2048, words=RAGGED),
        "apart-2048": Case(
            size=2048, words=RAGGED, tried=("seed=" + ",".join(map(str, range(MEMBERS))), f"rank={RANK}")
        ),
        "nf4-512": Case(size=512, updates=100, more=("base_dtype=nf4",), room_bytes=24 * 10**9),
        "mixed-2048": Case(
            size=2048,
            words=LONG,
            is_packed=True,
            sequence=1024,
            updates=120,
            tried=("rank=8,16,32,64", "lr=1e-5,2e-5"),
            looks=OFTEN,
        ),
    }
    side = Side(base, tiny=given.tiny)
    if not given.tiny:
        side.shape = SHAPES[given.shape]
    parts: dict[str, gpu_parts.Part] = {
        "prepare": partial(prepare, side),
        **{name: partial(run, base, case, tiny=given.tiny) for name, case in cases.items()},
        **{f"engine-{size}": partial(side.company, MEMBERS, size) for size in SIZES},
    }
    asked = given.only or [name for name in parts if name != "prepare"]
    return gpu_parts.run_parts("run" if is_usual else f"run {given.shape}", parts, ["prepare", *asked], given)


def prepare(side: Side, say: Say) -> None:
    """Write the base, with a tokenizer beside it."""
    from stoker.cookbooks.language.bundled import bundled_base

    base = side.folder
    if not (base / "config.json").exists():
        side.prepare(say)
    for file in bundled_base("tiny").glob("*token*"):
        shutil.copy(file, base / file.name)
    say("files", sorted(file.name for file in base.iterdir()))


def run(base: Path, case: Case, say: Say, *, tiny: bool) -> None:
    with tempfile.TemporaryDirectory(prefix="stoker-run-") as scratch:
        data = Path(scratch, "words.jsonl")
        data.write_text(_text(case.words))
        # No rank of the tiny base can be 64.
        tried = tuple(text.replace("8,16,32,64", "4,8,16,32") for text in case.tried) if tiny else case.tried
        asked = (f"base={base}", f"data={data}", *tried, f"max_seq_len={case.sequence}")
        updates = (case.updates or UPDATES[case.size]) // (20 if tiny else 1)
        sizes = (f"batch={case.size // case.sequence}", f"steps={updates}", f"gpus={int(not tiny)}")
        how = (f"packing={str(case.is_packed).lower()}", *OPTIONS, *case.looks, *case.more)
        command = [sys.executable, "-m", "stoker", "run", "language/lora", *asked, *sizes, *how, "--json"]
        begun = time.perf_counter()
        settings = {**os.environ, "STOKER_HOME": f"{scratch}/home"}
        with _leaving(0 if tiny else case.room_bytes):
            done = subprocess.run(command, cwd=scratch, env=settings, capture_output=True, text=True, check=False)
        say("whole_s", time.perf_counter() - begun)
        say("exit_code", done.returncode)
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0:
            raise RuntimeError((done.stdout + done.stderr)[-2000:])
    ends = [event for event in events if event["kind"] == "stage_end" and event["node"].endswith("train_lora")]
    say("together", [event.get("company", {}).get("members") for event in ends])
    members = [_rate(events, event["node"], _tokens_of_update(case)) for event in ends]
    say("members", members)
    say("tokens_per_s", sum(members))
    say("cost_s", [event["metrics"]["cost_s"] for event in ends])
    say("stages_s", {event["node"]: event["seconds"] for event in events if event["kind"] == "stage_end"})
    say(
        "told",
        list(dict.fromkeys(event["text"] for event in events if event["kind"] == "stage_told")),
    )
    say("first_update_s", _first_update_s(events))
    say("pauses", _pauses(events))


@contextmanager
def _leaving(room_bytes: int) -> Iterator[None]:
    """Let another process take all of the device but so much; 0: take nothing."""
    if not room_bytes:
        yield
        return
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(room_bytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
        holder.communicate()


_HOLDER = """
import sys, torch
torch.zeros(1, device="cuda")
held = torch.empty(torch.cuda.mem_get_info()[0] - int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print(flush=True)
sys.stdin.read()
"""


def _rate(events: list[dict[str, Any]], node: str, tokens: float) -> float:
    """Return the tokens a second of one member, from two of its reports."""
    steps = [event for event in events if event["kind"] == "stage_step" and event["node"] == node]
    first, *_, last = (event for event in steps if event["of"] / 4 <= event["step"] < event["of"])
    return float((last["step"] - first["step"]) * tokens / (last["ts"] - first["ts"]))


def _tokens_of_update(case: Case) -> float:
    """Return the tokens of a member's update in the mean, no padding: a letter is one, and so is a text's end."""
    from stoker.cookbooks.language.examples import pack

    # In the order in which rows are filled: the longest first.
    texts = (json.loads(line)["text"] for line in _text(case.words).splitlines())
    lengths = sorted((min(len(text) + 1, case.sequence) for text in texts), reverse=True)
    rows = len(pack(lengths, case.sequence)) if case.is_packed else len(lengths)
    return sum(lengths) / rows * (case.size // case.sequence)


def _first_update_s(events: list[dict[str, Any]]) -> float:
    """Return what passed from the first event to the first update of all."""
    updates = (one["ts"] for one in events if one["kind"] == "stage_step" and one["node"].endswith("train_lora"))
    return float(next(updates) - events[0]["ts"])


def _pauses(events: list[dict[str, Any]]) -> list[tuple[float, int]]:
    """Return the longest times between two reports of training, the longest first, and the update after each."""
    steps = [one for one in events if one["kind"] == "stage_step" and one["node"].endswith("train_lora")]
    gaps = ((two["ts"] - one["ts"], two["step"]) for one, two in itertools.pairwise(steps))
    return sorted(((round(gap, 3), step) for gap, step in gaps), reverse=True)[:_PAUSES]


def _text(words: tuple[int, int]) -> str:
    draw = random.Random(0)
    known = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(2000)]
    lines, letters = [], 0
    while letters < LETTERS:
        line = " ".join(draw.choices(known, k=draw.randint(*words)))
        letters += len(line)
        lines.append(json.dumps({"text": line}))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
