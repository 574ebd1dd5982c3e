"""`stoker store adopt`: let an old result stand for a change that a person knows to be without effect."""

from __future__ import annotations

import os
import pwd
from typing import Any

from stoker.cli.context import CommandContext
from stoker.cli.grammar import Grammar, Option, Positional
from stoker.cli.job_handle import job_story, split_target
from stoker.core.digests import Digest, is_digest
from stoker.core.errors import Ambiguous, NotFound, Usage
from stoker.jobs.rerun import AdoptionApproval, adopt_stage
from stoker.jobs.rerun_spec import reorder
from stoker.jobs.results import keys_of_job
from stoker.store.prune import all_records

GRAMMAR = Grammar(
    "store adopt",
    about=(
        "Let the result that a stage gave in a job stand for what it would make now, with today's code and files: for "
        "a change that you know to be without effect. Who, when and why is written down with the result."
    ),
    positionals=(Positional("NAME/STAGE", key="target", help="the stage of a job whose result is to stand"),),
    options=(
        Option("--reason", value="TEXT", help="why the change has no effect; required"),
        Option("--from", value="KEY", help="take the result under this key (its beginning will do) instead"),
    ),
    examples=("stoker store adopt last/train_gbt --reason 'only renamed a variable'",),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Adopt one stage's result."""
    out, parts = call.out, call.parts
    name, stage = split_target(given["target"])
    if not stage or not (given["reason"] or "").strip():
        missing = (
            "NAME/STAGE names one stage of a job" if not stage else "--reason is required: say why it has no effect"
        )
        raise Usage(missing, hint="stoker help store adopt")
    folder = call.find_job(name)
    plan = reorder(call.desk(), folder).plan
    old = keys_of_job(folder, job_story(folder))
    if given["from"]:
        old = {stage: _full_key(call, given["from"])}
    author = _author()
    blessing = AdoptionApproval(author=author, reason=given["reason"].strip(), at_s=parts.clock.wall_s())
    for adopted in adopt_stage(parts.cache, plan, stage, old=old, blessing=blessing):
        out.object(
            {"node": adopted.node, "from": adopted.old, "key": adopted.new, "reason": blessing.reason, "by": author}
        )
        out.line(f"{adopted.node}: the result under {adopted.old[:12]} now also stands for {adopted.new[:12]}")
    return 0


def _full_key(call: CommandContext, text: str) -> Digest:
    if is_digest(text):
        return Digest(text)
    found = [record.key for record, _ in all_records(call.parts.store) if record.key.startswith(text)]
    if not found:
        raise NotFound(
            f"no result lies under a key that begins with {text!r}", hint="`stoker explain NAME/STAGE` shows keys"
        )
    if len(found) > 1:
        raise Ambiguous(f"{text!r} begins the keys of {len(found)} results", hint="type more of it")
    return found[0]


def _author() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # In many containers a user is only a number.
        return f"uid {os.getuid()}"
