"""`stoker chat --on MACHINE`: prompts that are known are answered by a job of language/sample on that machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.api.submission import send_submission
from stoker.cli.chat_sources import RESET, ChatSource, all_found, named_base, settled_choices
from stoker.cli.context import CommandContext
from stoker.cli.machine_jobs import check_machines, fetch_result, require_completed, start_again
from stoker.cli.screens import busy
from stoker.config.interpolation import literal
from stoker.config.values import text_of
from stoker.cookbooks.language.arguments import SAMPLE
from stoker.core.errors import BadInput, InvalidTransition, StokerError, Usage
from stoker.core.text import outside
from stoker.host.durable import temp_folder
from stoker.jobs.request import JobRequest

if TYPE_CHECKING:
    from stoker.cookbooks.language.bases import TrainableBase
    from stoker.cookbooks.language.schemas import AnswersRecord


def answer_on_machine(call: CommandContext, given: dict[str, Any]) -> int:
    """Let a machine of the fleet answer, and print its answers."""
    prompts = [given["prompt"]] if given["prompt"] is not None else _lines_of_input(call)
    with temp_folder(call.parts.settings.scratch, call.parts.clock.wall_s()) as scratch:
        found = all_found(call, given, Path(scratch))
        is_whole = not found[0].is_adapter
        base = str(found[0].folder) if is_whole else _word_of_base(found, given["over"])
        choices = settled_choices(call, found, _base_here(base))
        values = {
            "base": base,
            "names": [] if is_whole else [one.name for one in found],
            "with_base": given["base"],
            "prompts": prompts,
            "conversation": len(prompts) > 1 or None,
            "plain": given["plain"],
            "tokens": given["tokens"],
            "context": given["context"],
            "temperature": given["temperature"],
            "seed": given["seed"],
            "dtype": choices.dtype,
            "base_dtype": choices.base_dtype,
            "path": choices.path,
            "gpus": 0 if given["cpu"] else None,
        }
        chosen = {name: value for name, value in values.items() if value is not None and value is not False}
        adapters = [] if is_whole else [str(one.folder) for one in found]
        record = _answers_of(call, given["on"], chosen, adapters, given["at"])
    out = call.out
    for one in record["answers"]:
        if len({one.get("model") for one in record["answers"]}) > 1:
            out.line(out.paint(f"[{one.get('model')}]", "bold"))
        out.line(one["completion"])
        out.object({**one, "machine": given["on"]})
    return 0


def _lines_of_input(call: CommandContext) -> list[str]:
    """Return the prompts of standard input. Raises `Usage` at a terminal."""
    if sys.stdin.isatty() and not call.flags.json:
        raise Usage("--on needs --prompt, or lines on standard input", hint="ssh to the machine to type prompts there")
    lines = [line for line in sys.stdin.read().splitlines() if line.strip()]
    if RESET in lines:
        raise Usage(f"{RESET} does not work with --on: its prompts are one conversation")
    if not lines:
        raise Usage("no prompt on standard input", hint="--prompt TEXT")
    return lines


def _word_of_base(found: Sequence[ChatSource], over: str | None) -> str:
    """Return the base as the machine is told it. Raises `BadInput` if the adapters name none, or several."""
    words = [over or one.base or str(named_base(one) or "") for one in found]
    if not words[0]:
        raise BadInput(f"no base of {found[0].name} is known", hint=f"stoker chat {found[0].name} --over BASE")
    if other := next((number for number, word in enumerate(words) if word != words[0]), 0):
        message = f"{found[0].name} is over {outside(words[0])}, {found[other].name} over {outside(words[other])}"
        raise BadInput(message, hint="chat with one at a time, or name the base of both: --over BASE")
    return words[0]


def _base_here(word: str) -> TrainableBase | None:
    from stoker.cookbooks.language.checks import find_base

    try:
        return find_base(word, use="used")
    except StokerError:
        return None


def _answers_of(
    call: CommandContext, machine: str, values: Mapping[str, Any], adapters: Sequence[str], at: str | None
) -> AnswersRecord:
    """Return the answers of a job of language/sample with these arguments. Ctrl-C cancels the job.

    The adapters are folders here; what the machine lacks of them is sent. Raises `NotFound` for an unknown machine,
    `WorkFailed` if the job does not complete.
    """
    from stoker.cookbooks.language.schemas import read_answers
    from stoker.jobs.submission import prepare
    from stoker.transfer.trees.tree_upload import send_tree

    client = call.lookup.client_of(call.lookup.wait_for_coordinator(at, limit_s=0.0))
    check_machines(client, [machine])
    given = {**values, "adapter": list(adapters)}
    request = JobRequest(
        target=SAMPLE,
        overrides=tuple(f"{name}={text_of(literal(value))}" for name, value in given.items()),
        name="chat",
        fields={"allowed_hosts": (machine,)},
    )
    prepared = prepare(request, builder=call.builder(), code=call.parts.code)
    call.parts.code.save()
    (spec,) = prepared.jobs
    start_again(call, client, prepared.jobs)
    send_submission(
        client, prepared, call.parts, upload=lambda one: send_tree(client, one.tree, one.source(call.parts.store))
    )
    job = call.lookup.fleet_job(spec.id, at)
    try:
        with busy(call, f"answering on {machine}"):
            job.wait(None, lambda _view: None)
    except KeyboardInterrupt:
        try:
            job.cancel(waits=False)
        except InvalidTransition:
            call.out.note(f"note: {job.ref} has ended")
        raise
    require_completed(client, spec, f"answers on {machine}")
    with temp_folder(call.parts.settings.scratch, call.parts.clock.wall_s()) as folder:
        fetch_result(call, spec, folder, at)
        return read_answers(Path(folder))
