"""Conversations with adapters over one base, side by side: the base is in memory once, each adapter in a slot.

Answers are drawn as the samples of a training are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stoker.authoring import InvalidArgs, Needs
from stoker.cookbooks.language.arguments import ALL_LINEAR, BaseDtype, BasePath, SettledDtype
from stoker.cookbooks.language.bases import TrainableBase
from stoker.cookbooks.language.checks import LanguageArgsChecker
from stoker.cookbooks.language.memory_needs import Load, is_general, kept_as, sample_needs, too_large
from stoker.cookbooks.language.peft import read_config
from stoker.cookbooks.language.reading import ChatMessage
from stoker.cookbooks.language.sample import Sampler, is_chat, open_slots, slot_logits
from stoker.cookbooks.language.schemas import TRAINING, read_training
from stoker.cookbooks.language.tokens import open_tokenizer
from stoker.core.errors import BadInput
from stoker.core.frozen import frozen

_RECIPE = "chat"
_ESTIMATED_TOKENS = 512
"""Tokens of a conversation for which memory is estimated."""
BASE_NAME = "base"
"""What the base alone is called beside adapters."""


@frozen
class ChatModel:
    """One of the models that answer."""

    name: str
    adapter: Path | None
    """Its folder in PEFT's layout; None: the base alone."""


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
    is_plain: bool | None
    """True: complete prompts as they are; False: as turns of a conversation; None: as the first adapter learned."""


def chat_needs(setup: ChatSetup) -> Needs:
    """Return the memory that a setup needs. Raises `BadInput` if an adapter does not fit its base.

    Raises `InsufficientDeviceMemory` if no device here has enough.
    """
    checking = LanguageArgsChecker(_RECIPE)
    folders = [one.adapter for one in setup.models if one.adapter is not None]
    for folder in folders:
        checking.adapter(str(folder), setup.base)
    try:
        checking.refuse()
    except InvalidArgs as error:
        first = error.faults[0]
        raise BadInput(first.message, hint=first.hint) from None
    load = Load(
        rank=max([read_config(one)["r"] for one in folders], default=1),
        targets=(ALL_LINEAR,),
        rows=1,
        tokens=min(_ESTIMATED_TOKENS, setup.base.positions),
        dtype=setup.dtype,
        base_dtype=kept_as(setup.base, setup.base_dtype),
        is_general=is_general(setup.base, setup.path),
    )
    gpus = int(setup.on_gpu)
    if (short := too_large(setup.base, load, gpus=gpus)) is not None:
        raise short
    return sample_needs(setup.base, load, gpus=gpus)


class ChatSession:
    """Several models, each with a conversation of its own. Not thread-safe."""

    def __init__(self, setup: ChatSetup) -> None:
        """Load the base and the adapters."""
        from stoker.cookbooks.language.peft import read_adapter

        adapters = [None if one.adapter is None else read_adapter(one.adapter) for one in setup.models]
        slots, self.path = open_slots(setup.base.folder, adapters, setup, device="cuda" if setup.on_gpu else "cpu")
        tokenizer = open_tokenizer(setup.base.folder)
        self._longest = setup.base.positions
        self._tokens = setup.tokens
        self._samplers = {
            one.name: Sampler(
                slot_logits(slots, slot),
                tokenizer,
                longest=setup.base.positions,
                tokens=setup.tokens,
                temperature=setup.temperature,
                seed=setup.seed,
            )
            for slot, one in enumerate(setup.models)
        }
        self._turns: dict[str, list[ChatMessage]] = {one.name: [] for one in setup.models}
        self.is_plain = _is_plain(setup, has_template=bool(tokenizer.chat_template))
        """True if prompts are completed as they are, each by itself."""

    @property
    def names(self) -> tuple[str, ...]:
        """The models that answer, in order."""
        return tuple(self._samplers)

    def reset(self) -> None:
        """Forget all conversations."""
        for turns in self._turns.values():
            turns.clear()

    def answer(self, name: str, prompt: str) -> Iterator[str]:
        """Return the answer of a model, piece by piece. A conversation keeps it, also as far as it was read.

        Raises `BadInput` if the prompt is longer than the base reads. Of a long conversation the oldest turns are left
        out.
        """
        sampler = self._samplers[name]
        if self.is_plain:
            yield from sampler.pieces(self._fitting(sampler.prompt_tokens(prompt)))
            return
        turns = [*self._turns[name], ChatMessage(role="user", content=prompt)]
        shown = sampler.chat_tokens(turns)
        while len(shown) + self._tokens > self._longest and len(turns) > 1:
            del turns[:2]
            shown = sampler.chat_tokens(turns)
        pieces = sampler.pieces(self._fitting(shown))
        said: list[str] = []
        try:
            for piece in pieces:
                said.append(piece)
                yield piece
        finally:
            # A prompt that was refused is no turn: templates want turns to alternate.
            self._turns[name] = [*turns, ChatMessage(role="assistant", content="".join(said))]

    def _fitting(self, shown: list[int]) -> list[int]:
        if len(shown) >= self._longest:
            message = f"the prompt has {len(shown):,} tokens; the base reads {self._longest:,} at most"
            raise BadInput(message, hint="a shorter prompt")
        return shown


def _is_plain(setup: ChatSetup, *, has_template: bool) -> bool:
    if setup.is_plain is not None:
        return setup.is_plain
    adapter = next((one.adapter for one in setup.models if one.adapter is not None), None)
    if adapter is not None and (adapter / TRAINING).is_file():
        return not is_chat(read_training(adapter)["data"])
    return not has_template
