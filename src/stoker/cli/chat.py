"""`stoker chat`: try a trained adapter beside its base, or several adapters over one base beside each other."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.cli.chat_sources import RESET, ChatSource, all_found, named_base, settled_choices
from stoker.cli.context import CommandContext
from stoker.cli.dispatch import AskedToEnd
from stoker.cli.grammar import AT, Grammar, Option, Positional, whole
from stoker.cli.screens import busy
from stoker.core.device import GIB, Needs
from stoker.core.errors import BadInput, MissingExtra, StokerError, Usage
from stoker.core.frozen import changed
from stoker.core.text import outside
from stoker.devices.ledger.reservations import CandidateDevice, DeviceRequest
from stoker.engine.device_gate import device_variables
from stoker.host.durable import temp_folder
from stoker.host.install import pip_install

if TYPE_CHECKING:
    from stoker.cookbooks.language.bases import TrainableBase
    from stoker.cookbooks.language.chat import ChatSession, ChatSetup

_PROMPT = "> "
_WAIT_S = 60.0
"""Maximum wait for memory of a GPU."""
_TOKENS = 256
_CONTEXT = 4_096
_HOTTEST = 100
_MOST_TOKENS, _LARGEST_SEED = 100_000, 1_000_000_000
"""As of language/sample, by which --on answers."""
_LIBRARIES = ("torch", "transformers", "safetensors")
_HELP = f"{RESET} forgets the conversation; Ctrl-C stops an answer; Ctrl-D leaves"


def _temperature(text: str) -> float:
    """Parse a temperature. Raises `ValueError`."""
    value = float(text)
    if not 0 <= value <= _HOTTEST:
        message = f"not from 0 to {_HOTTEST}"
        raise ValueError(message)
    return value


GRAMMAR = Grammar(
    "chat",
    about=(
        "Type prompts and read the answers of a trained adapter, of several beside each other, or of a model. The base "
        "is loaded once. Prompts are turns of a conversation if the adapter learned conversations, or if nothing says "
        "what it learned and the base has a chat template; otherwise each is completed by itself. The result of a "
        f"fleet job is fetched first. At the prompt: {_HELP}. Where standard input is no terminal, each of its lines "
        "is a prompt."
    ),
    positionals=(
        Positional(
            "NAME",
            key="names",
            help="a job of language/lora, language/full or language/merge (a name, `last`, an id), a trial of it "
            "(`last/3`), a folder: an adapter in PEFT's layout, or a model; or a base: org/name of the hub, tiny",
            is_many=True,
            completes="job folder",
        ),
    ),
    options=(
        Option("--base", help="also answer with the base alone"),
        Option("--over", value="BASE", help="the base of the adapters, if it is not found by its name"),
        Option("--prompt", value="TEXT", help="answer this prompt and exit"),
        Option("--plain", help="complete prompts as they are, without a chat template"),
        Option(
            "--tokens", value="N", read=whole(1, _MOST_TOKENS), help=f"maximum tokens of an answer (default: {_TOKENS})"
        ),
        Option(
            "--context",
            value="N",
            read=whole(2),
            help="maximum tokens of a conversation, for which memory is reserved (default: "
            f"{_CONTEXT:,} or what the base reads, whichever is less; with --on what the base reads)",
        ),
        Option(
            "--temperature",
            value="T",
            read=_temperature,
            help="sampling temperature (default: 0, always the likeliest token)",
        ),
        Option("--seed", value="N", read=whole(0, _LARGEST_SEED), help="random seed (default: 0)"),
        Option("--cpu", help="compute on the CPU (default: on a GPU if there is one)"),
        Option(
            "--on",
            value="MACHINE",
            help="let this machine of the fleet answer --prompt, or the lines of standard input, by a job of "
            "language/sample",
            completes="machine",
        ),
        AT,
    ),
    examples=(
        "stoker chat last",
        "stoker chat tries/1 tries/2 --base",
        "stoker chat last --prompt '2+3=' --json",
        "stoker chat ./adapter --over models/llama --temperature 0.8",
        "stoker chat last --on desk --prompt '2+3='",
    ),
)


def perform(call: CommandContext, given: dict[str, Any]) -> int:
    """Answer one prompt, or those that are typed."""
    if not given["names"]:
        raise Usage("NAME is missing", hint="stoker chat last, or a folder")
    if given["on"]:
        from stoker.cli.chat_on_machine import answer_on_machine

        return answer_on_machine(call, given)
    _refuse_missing()
    from stoker.cookbooks.language.chat import ChatSession, chat_needs
    from stoker.engine.recipe import surrounded_by

    with ExitStack() as stack:
        stack.enter_context(surrounded_by(call.builder().surroundings))
        scratch = Path(stack.enter_context(temp_folder(call.parts.settings.scratch, call.parts.clock.wall_s())))
        found = all_found(call, given, scratch)
        setup = _setup(call, found, given)
        needs = chat_needs(setup)
        if setup.on_gpu:
            stack.enter_context(_reserved(call, needs))
            setup = _on_usable_device(call, setup)
        with busy(call, f"loading {setup.base.name}"):
            session = ChatSession(setup, lambda text: call.out.note(f"note: {text}"))
        if given["prompt"] is not None:
            _answer(call, session, given["prompt"])
        else:
            _converse(call, session)
    return 0


def _refuse_missing() -> None:
    missing = [name for name in _LIBRARIES if find_spec(name) is None]
    if missing:
        raise MissingExtra(f"{missing[0]} is not installed", hint=pip_install("stoker[language]"), extra="language")


# The base: named, or that of the adapters, which must be the same for all.


def _setup(call: CommandContext, found: Sequence[ChatSource], given: dict[str, Any]) -> ChatSetup:
    from stoker.cookbooks.language.arguments import settled_dtype
    from stoker.cookbooks.language.chat import BASE_NAME, ChatModel, ChatSetup
    from stoker.cookbooks.language.checks import find_base

    models = [ChatModel(name=one.name, adapter=one.folder if one.is_adapter else None) for one in found]
    if given["base"]:
        models.append(ChatModel(name=BASE_NAME, adapter=None))
    is_whole = not found[0].is_adapter
    base = find_base(str(found[0].folder), use="used") if is_whole else _base(call, found, given["over"])
    on_gpu = bool(call.parts.devices) and not given["cpu"]
    choices = settled_choices(call, found, base)
    return ChatSetup(
        base=base,
        models=tuple(models),
        on_gpu=on_gpu,
        dtype=settled_dtype(choices.dtype, on_gpu=on_gpu),
        base_dtype=choices.base_dtype,
        path=choices.path,
        tokens=given["tokens"] or _TOKENS,
        temperature=given["temperature"] or 0.0,
        seed=given["seed"] or 0,
        context=given["context"] or min(_CONTEXT, base.positions),
        is_plain=True if given["plain"] else None,
    )


def _base(call: CommandContext, found: Sequence[ChatSource], over: str | None) -> TrainableBase:
    """Return the base of all adapters. Raises `BadInput` if they have several, or one that is not here."""
    from stoker.cookbooks.language.checks import find_base, is_another_base

    if over is not None:
        base = find_base(over, use="used")
        for one in found:
            if is_another_base(named := named_base(one), base):
                call.out.note(f"note: {one.name} was trained over {outside(str(named))}, this is {base.name}")
        return base
    bases = [_base_of(one) for one in found]
    for one, base in zip(found, bases, strict=True):
        if base.word != bases[0].word:
            message = f"{found[0].name} is over {bases[0].name}, {one.name} over {base.name}"
            raise BadInput(message, hint="chat with one at a time, or name the base of both: --over BASE")
    return bases[0]


def _base_of(source: ChatSource) -> TrainableBase:
    from stoker.cookbooks.language.checks import find_base

    faults: list[StokerError] = []
    for text in (source.base, named_base(source)):
        try:
            if isinstance(text, str) and text:
                return find_base(text, use="used")
        except StokerError as error:
            faults.append(error)
    why = faults[0].message if faults else "its files name none"
    raise BadInput(f"no base of {source.name} here: {why}", hint=f"stoker chat {source.name} --over BASE")


@contextmanager
def _reserved(call: CommandContext, needs: Needs) -> Iterator[None]:
    """Reserve memory of a GPU within the block, and show torch this GPU only."""
    devices = call.parts.devices
    candidates = [one for one in map(CandidateDevice.of, devices) if one is not None]
    request = DeviceRequest(
        job="chat", devices=tuple(candidates), vram_bytes=int((needs.vram_gib or 0) * GIB), may_share=True
    )
    with call.parts.ledger.guard(request, _WAIT_S) as held:
        chosen = [one for one in devices if one.uuid in held.uuids]
        os.environ |= device_variables(chosen, call.parts.settings.environment)
        yield


def _on_usable_device(call: CommandContext, setup: ChatSetup) -> ChatSetup:
    """Return the setup for the CPU if torch can't use the reserved GPU."""
    from stoker.cookbooks.language.arguments import device_of

    _, note = device_of(("gpu",))
    if not note:
        return setup
    call.out.note(f"note: {note}")
    return changed(setup, on_gpu=False, dtype="float32")


# Answers, as they come.


def _converse(call: CommandContext, session: ChatSession) -> None:
    """Answer each prompt until the end of input. Ctrl-C stops an answer."""
    is_typed = sys.stdin.isatty() and not call.flags.json
    if is_typed:
        with suppress(ImportError):
            # It lets people edit what they type.
            import readline  # noqa: F401
        call.out.note(f"{', '.join(session.names)}: {_HELP}")
    while (prompt := _read(call, is_typed=is_typed)) is not None:
        if prompt.strip() == RESET:
            session.reset()
        elif prompt.strip():
            try:
                _answer(call, session, prompt)
            except AskedToEnd:
                raise
            except KeyboardInterrupt:
                if not is_typed:
                    raise
                call.out.line()
            except BadInput as error:
                call.out.complain(f"{error}")


def _read(call: CommandContext, *, is_typed: bool) -> str | None:
    """Return a line of input; None at its end. Ctrl-C begins a new line."""
    if not is_typed:
        line = sys.stdin.readline()
        return line.removesuffix("\n") if line else None
    while True:
        try:
            return input(_PROMPT)
        except EOFError:
            call.out.line()
            return None
        except AskedToEnd:
            raise
        except KeyboardInterrupt:
            call.out.line()


def _answer(call: CommandContext, session: ChatSession, prompt: str) -> None:
    """Print the answers of all models, one after another."""
    out, clock = call.out, call.parts.clock
    with session.turn():
        for name in session.names:
            began_s, pieces = clock.monotonic_s(), []
            if len(session.names) > 1:
                out.line(out.paint(f"[{name}]", "bold"))
            with closing(session.answer(name, prompt)) as answer:
                for piece in answer:
                    pieces.append(piece)
                    out.piece(piece)
            out.line()
            seconds = round(clock.monotonic_s() - began_s, 3)
            out.object({"model": name, "prompt": prompt, "completion": "".join(pieces), "seconds": seconds})
