"""Conversations with adapters over one base, side by side: the base is in memory once, each adapter in a slot.

Answers are drawn as the samples of a training are. `stoker chat` reads prompts as they are typed; the stage
`language/answer` gets them all at once, on any machine of a fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from stoker.authoring import InvalidArgs, Needs, StageContext, stage
from stoker.cookbooks.language.answer_memory import answer_needs, answers_too_large
from stoker.cookbooks.language.arguments import (
    ALL_LINEAR,
    SAMPLE,
    AnswerArgs,
    BaseDtype,
    BasePath,
    Dtype,
    SettledDtype,
    device_of,
    settled_dtype,
)
from stoker.cookbooks.language.bases import TrainableBase, read_base
from stoker.cookbooks.language.checks import LanguageArgsChecker
from stoker.cookbooks.language.conversations import ConversationTemplate, end_tokens
from stoker.cookbooks.language.kinds import Answers
from stoker.cookbooks.language.memory_needs import Load, is_general, load_over
from stoker.cookbooks.language.peft import adapter_files, adapter_header, is_dora, modules_of, read_config
from stoker.cookbooks.language.reading import ChatMessage
from stoker.cookbooks.language.sample import ANSWERING, Sampler, is_chat, open_slots, slot_logits
from stoker.cookbooks.language.schemas import ANSWERS, TRAINING, AnswersRecord, CompletionSample, read_training
from stoker.core import jsontext
from stoker.core.errors import BadInput
from stoker.core.frozen import changed, frozen

_CHOICES = {"dtype": get_args(Dtype), "base_dtype": get_args(BaseDtype), "path": get_args(BasePath)}
BASE_NAME = "base"
"""What the base alone is called beside adapters."""


@frozen
class ChatModel:
    """One of the models that answer."""

    name: str
    adapter: Path | None
    """Its folder in PEFT's layout; None: the base alone."""


@frozen
class BaseChoices:
    """How a base is computed; `auto` as far as nobody chose."""

    dtype: Dtype = "auto"
    base_dtype: BaseDtype = "auto"
    path: BasePath = "auto"


def trained_with(folder: Path) -> BaseChoices:
    """Return how the base was computed when an adapter or a model was trained, by its record, if it has one.

    Raises `BadInput` if that is invalid.
    """
    if not (folder / TRAINING).is_file():
        return BaseChoices()
    record = read_training(folder)
    settings: Any = record["settings"]
    # What was chosen for the device of the training is not chosen for another one.
    is_chosen = record["dtype"] != settled_dtype("auto", on_gpu=record["device"] == "cuda")
    found = {**(settings if isinstance(settings, dict) else {}), "dtype": record["dtype"] if is_chosen else "auto"}
    return BaseChoices(**{name: found[name] for name, words in _CHOICES.items() if found.get(name) in words})


def agreed_choices(named: Mapping[str, BaseChoices]) -> tuple[BaseChoices, tuple[str, ...]]:
    """Return how a base is computed for all models at once, and what differs from their trainings, for the user."""
    agreed: dict[str, Any] = {}
    notes: list[str] = []
    for choice in _CHOICES:
        values = {name: getattr(choices, choice) for name, choices in named.items()}
        agreed[choice] = next(iter(values.values())) if len({*values.values()}) == 1 else "auto"
        others = [f"{name} with {value}" for name, value in values.items() if value != agreed[choice]]
        if others:
            notes.append(f"trained with another {choice} ({', '.join(others)}): all answer with {choice}=auto")
    return BaseChoices(**agreed), tuple(notes)


def choices_over(base: TrainableBase, choices: BaseChoices) -> tuple[BaseChoices, tuple[str, ...]]:
    """Return the choices of trainings that this base can take, and what it can't, for the user."""
    on_disk, odd = f"it is {base.quantised} on disk", {}
    if base.quantised != "auto" and choices.base_dtype not in ("auto", base.quantised):
        odd["base_dtype"] = on_disk
    if base.quantised != "auto" and choices.path == "general":
        odd["path"] = on_disk
    if base.differs and choices.path == "fast":
        odd["path"] = base.differs
    notes = [
        f"trained with {name}={getattr(choices, name)}, which {base.name} can't take ({why}): answers with {name}=auto"
        for name, why in odd.items()
    ]
    return changed(choices, **dict.fromkeys(odd, "auto")), tuple(notes)


@frozen
class ChatSetup:
    """The models that answer, and how they do."""

    base: TrainableBase
    models: tuple[ChatModel, ...]
    on_gpu: bool
    dtype: SettledDtype
    base_dtype: BaseDtype
    path: BasePath
    tokens: int
    temperature: float
    seed: int
    context: int
    """Maximum tokens of a conversation with its answers."""
    is_plain: bool | None
    """True: complete prompts as they are; False: as turns of a conversation; None: as the first adapter learned."""


def chat_needs(setup: ChatSetup) -> Needs:
    """Return the memory that a setup needs. Raises `BadInput` if an adapter does not fit its base.

    Raises `InsufficientDeviceMemory` if no device here has enough.
    """
    checking = LanguageArgsChecker(SAMPLE)
    checking.path(setup.path, setup.base)
    checking.context(setup.context, setup.base)
    checking.base_dtype(setup.base_dtype, setup.base, is_general=is_general(setup.base, setup.path))
    folders = [one.adapter for one in setup.models if one.adapter is not None]
    for folder in folders:
        checking.adapter(str(folder), setup.base)
    try:
        checking.refuse()
    except InvalidArgs as error:
        first = error.faults[0]
        raise BadInput(first.message, hint=first.hint) from None
    load = chat_load(
        setup.base, setup.models, setup.context, dtype=setup.dtype, base_dtype=setup.base_dtype, path=setup.path
    )
    gpus, count = int(setup.on_gpu), len(setup.models)
    if (short := answers_too_large(setup.base, load, count, gpus=gpus, context="--context ")) is not None:
        raise short
    return answer_needs(setup.base, load, count, gpus=gpus)


def chat_load(
    base: TrainableBase,
    models: Sequence[ChatModel],
    tokens: int,
    *,
    dtype: SettledDtype,
    base_dtype: BaseDtype,
    path: BasePath,
) -> Load:
    """Return the load of valid models and their longest conversation, by which memory is estimated."""
    folders = [one.adapter for one in models if one.adapter is not None]
    configs = [read_config(one) for one in folders]
    copies = [modules_of(one, adapter_header(one).tensors, said)[1] for one, said in zip(folders, configs, strict=True)]
    return load_over(
        base,
        base_dtype=base_dtype,
        path=path,
        rank=max([one["r"] for one in configs], default=1),
        dora=any(map(is_dora, configs)),
        whole=len({name.rpartition(".")[2] for one in copies for name in one}),
        targets=(ALL_LINEAR,),
        rows=1,
        tokens=tokens,
        dtype=dtype,
    )


def answering_files(adapter: Path) -> tuple[Path, ...]:
    """Return the files of an adapter that decide its answers: also the record of what it learned, if it has one."""
    record = adapter / TRAINING
    return (*adapter_files(adapter), *[record][: record.is_file()])


class ChatSession:
    """Several models, each with a conversation of its own. Not thread-safe."""

    def __init__(self, setup: ChatSetup, note: Callable[[str], None]) -> None:
        """Load the base and the adapters. `note` is called with sentences for the user."""
        from stoker.cookbooks.language.peft import read_adapter
        from stoker.cookbooks.language.tokens import open_tokenizer

        adapters = [None if one.adapter is None else read_adapter(one.adapter) for one in setup.models]
        slots, self.path = open_slots(setup.base.folder, adapters, setup, device="cuda" if setup.on_gpu else "cpu")
        tokenizer = open_tokenizer(setup.base.folder)
        ends = end_tokens(setup.base.folder, tokenizer, setup.base.vocabulary)
        if ends.note:
            note(ends.note)
        self._note = note
        self._was_shortened = False
        self._longest = setup.context
        self._is_limited = setup.context < setup.base.positions
        # Many tokens for an answer leave no room for the conversation.
        self._reserved = min(setup.tokens, setup.context // 2)
        self._samplers = {
            one.name: Sampler(slot_logits(slots, slot), tokenizer, setup, ends=ends.tokens, longest=setup.context)
            for slot, one in enumerate(setup.models)
        }
        self._turns: dict[str, list[ChatMessage]] = {one.name: [] for one in setup.models}
        self.is_plain = _is_plain(setup, has_template=ConversationTemplate(tokenizer).is_own)
        """True if prompts are completed as they are, each by itself."""

    @property
    def names(self) -> tuple[str, ...]:
        """The models that answer, in order."""
        return tuple(self._samplers)

    def reset(self) -> None:
        """Forget all conversations."""
        self._turns = {name: [] for name in self._turns}

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Keep a prompt in all conversations, or in none if an error comes before every model has begun its answer."""
        before = dict(self._turns)
        try:
            yield
        except BaseException:
            if any(self._turns[name] is turns for name, turns in before.items()):
                self._turns = before
            raise

    def answer(self, name: str, prompt: str) -> Generator[str, None, None]:
        """Return the answer of a model, piece by piece. A conversation keeps it, also as far as it was read.

        Raises `BadInput` if the prompt is longer than the base reads. Of a long conversation the oldest turns are left
        out.
        """
        sampler = self._samplers[name]
        if self.is_plain:
            yield from sampler.pieces(self._fitting(sampler.prompt_tokens(prompt)), is_chat=False)
            return
        turns = [*self._turns[name], ChatMessage(role="user", content=prompt)]
        shown = sampler.chat_tokens(turns)
        while len(shown) + self._reserved > self._longest and len(turns) > 1:
            self._tell_of_shortening()
            del turns[:2]
            shown = sampler.chat_tokens(turns)
        pieces = sampler.pieces(self._fitting(shown), is_chat=True)
        said: list[str] = []
        is_whole = False
        try:
            for piece in pieces:
                said.append(piece)
                yield piece
            is_whole = True
        finally:
            # A prompt that was refused is no turn, nor is one without an answer: templates want turns to alternate.
            if is_whole or any(said):
                self._turns[name] = [*turns, ChatMessage(role="assistant", content="".join(said))]

    def _tell_of_shortening(self) -> None:
        if not self._was_shortened:
            self._was_shortened = True
            self._note(
                f"The conversation and an answer of {self._reserved:,} tokens are longer than its context of "
                f"{self._longest:,} tokens: the oldest turns are left out from now on."
            )

    def _fitting(self, shown: list[int]) -> list[int]:
        if len(shown) >= self._longest:
            limit, larger = ("the context is", "a larger context, or ") if self._is_limited else ("the base reads", "")
            message = f"the prompt has {len(shown):,} tokens; {limit} {self._longest:,} at most"
            raise BadInput(message, hint=f"{larger}a shorter prompt")
        return shown


def _is_plain(setup: ChatSetup, *, has_template: bool) -> bool:
    if setup.is_plain is not None:
        return setup.is_plain
    adapter = next((one.adapter for one in setup.models if one.adapter is not None), None)
    if adapter is not None and (adapter / TRAINING).is_file():
        return not is_chat(read_training(adapter)["data"])
    return not has_template


# The same for prompts that are known, as a stage.


@stage("language/answer", version=1, uses=ANSWERING, deterministic=False)
def answer(job: StageContext, args: AnswerArgs) -> Answers:
    """Answer prompts with a base, or with several adapters over it beside each other."""
    device, note = device_of(job.devices)
    if note:
        job.log(note)
    folders = [*map(Path, args.adapters), *[None] * (len(args.names) - len(args.adapters))]
    base = read_base(Path(args.base), name=args.base_name, use="used")
    session = ChatSession(
        ChatSetup(
            base=base,
            models=tuple(
                ChatModel(name=name, adapter=folder) for name, folder in zip(args.names, folders, strict=True)
            ),
            on_gpu=device != "cpu",
            dtype=args.dtype,
            base_dtype=args.base_dtype,
            path=args.path,
            tokens=args.tokens,
            temperature=args.temperature,
            seed=args.seed,
            context=args.context or base.positions,
            is_plain=True if args.plain else None,
        ),
        note=job.log,
    )
    job.log(session.path)
    made: list[CompletionSample] = []
    for number, prompt in enumerate(args.prompts, 1):
        if not args.conversation:
            session.reset()
        for name in session.names:
            pieces = []
            for piece in session.answer(name, prompt):
                job.check()
                pieces.append(piece)
            made.append(CompletionSample(model=name, prompt=prompt, completion="".join(pieces)))
            job.log(f"{name}: {prompt!r} → {made[-1]['completion']!r}")
        job.step(number, of=len(args.prompts))
    record = AnswersRecord(base=args.base_name, path=session.path, answers=made)
    (job.out / ANSWERS).write_text(f"{jsontext.dumps(record, indent=2)}\n", encoding="utf-8", newline="")
    return job.made(Answers)
