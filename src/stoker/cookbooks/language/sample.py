"""The stages that complete prompts with a trained model.

Separate stages, so that another prompt repeats no training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stoker.authoring import BadInput, StageContext, stage
from stoker.cookbooks.language.arguments import BaseDtype, BasePath, SampleArgs, SettledDtype, device_of
from stoker.cookbooks.language.bases import TrainableBase, read_base
from stoker.cookbooks.language.conversations import ConversationTemplate, UnwrittenError, end_tokens
from stoker.cookbooks.language.kinds import Adapter, LanguageModel, Samples
from stoker.cookbooks.language.reading import ChatMessage
from stoker.cookbooks.language.schemas import CompletionSample, read_training

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from stoker.cookbooks.language.compute.banks import AdapterState
    from stoker.cookbooks.language.compute.slots import Slots


_UNFINISHED = "\ufffd"
"""The character for bytes that are no character, perhaps only because more of them follow."""
ANSWERING = ("jinja2", "safetensors", "tokenizers", "torch", "transformers")
"""What answers need: templates of chats are rendered by Jinja."""


@stage("language/sample", version=1, uses=ANSWERING, deterministic=False)
def sample(job: StageContext, adapter: Adapter, args: SampleArgs) -> Samples:
    """Complete prompts with a base and an adapter."""
    from stoker.cookbooks.language.peft import read_adapter

    base = Path(args.base)
    slots, path = open_slots(base, [read_adapter(adapter.path)], args, device=_device(job))
    job.log(path)
    return _sampled(job, read_base(base), adapter.path, args, slot_logits(slots, 0))


@stage("language/sample_model", version=1, uses=ANSWERING, deterministic=False)
def sample_model(job: StageContext, model: LanguageModel, args: SampleArgs) -> Samples:
    """Complete prompts with a whole model."""
    import torch

    from stoker.cookbooks.language.compute.decoding import CachedLogits, ModuleCache
    from stoker.cookbooks.language.compute.transformers_base import load_transformers

    device = _device(job)
    held = load_transformers(model.path, dtype=args.dtype, device=device)

    def logits(tokens: Tensor, cache: ModuleCache) -> Tensor:
        with torch.no_grad():
            made: Tensor = cache.call(held, tokens.to(device)).logits
        return made[:, -1].float().cpu()

    continued = CachedLogits(logits, ModuleCache())
    return _sampled(job, read_base(model.path), model.path, args, continued)


def _device(job: StageContext) -> str:
    device, note = device_of(job.devices)
    if note:
        job.log(note)
    return device


def _sampled(
    job: StageContext, base: TrainableBase, trained: Path, args: SampleArgs, logits: Callable[[Tensor], Tensor]
) -> Samples:
    from stoker.cookbooks.language.tokens import open_tokenizer

    tokenizer = open_tokenizer(base.folder)
    ends = end_tokens(base.folder, tokenizer, base.vocabulary)
    if ends.note:
        job.log(ends.note)
    sampler = Sampler(logits, tokenizer, args, ends=ends.tokens, longest=base.positions)
    chats = is_chat(read_training(trained)["data"])
    made = [sampler.complete(prompt, is_chat=chats, check=job.check) for prompt in args.prompts]
    for one in made:
        job.log(f"{one['prompt']!r} → {one['completion']!r}")
    return job.save(Samples, made)


class AnswerSettings(Protocol):
    """How a base is loaded."""

    @property
    def dtype(self) -> SettledDtype: ...
    @property
    def base_dtype(self) -> BaseDtype: ...
    @property
    def path(self) -> BasePath: ...


def open_slots(
    base: Path, adapters: Sequence[AdapterState | None], settings: AnswerSettings, *, device: str
) -> tuple[Slots, str]:
    """Load a base once, and each adapter into a slot, for None the base alone; return one line about the path, too."""
    from stoker.cookbooks.language.compute.base_loading import open_base
    from stoker.cookbooks.language.compute.matrices import adaptable
    from stoker.cookbooks.language.compute.slots import Slots
    from stoker.cookbooks.language.peft import over_base

    held, path = open_base(
        base, device=device, dtype=settings.dtype, base_dtype=settings.base_dtype, path=settings.path
    )
    names = [one.name for one in adaptable(held.shape)]
    if any(one is not None and one.spec.whole for one in adapters):
        names += [one.name for one in held.outer_modules()]
    adapters = [None if one is None else over_base(one, names) for one in adapters]
    specs = [one.spec for one in adapters if one is not None]
    whole = tuple(dict.fromkeys(name for spec in specs for name in spec.whole))
    slots = Slots(
        held,
        count=len(adapters),
        rank=max((spec.rank for spec in specs), default=1),
        targets=tuple(dict.fromkeys(target for spec in specs for target in spec.targets)),
        dora=any(spec.dora for spec in specs),
        whole=whole,
        trains=False,
        compiles=False,
        records=False,
    )
    for slot, one in enumerate(adapters):
        if one is not None:
            slots.load(slot, one)
    return slots, path


def slot_logits(slots: Slots, slot: int) -> Callable[[Tensor], Tensor]:
    """Return the logits of one slot after the last token of a sequence; known tokens are not computed again."""
    from stoker.cookbooks.language.compute.decoding import CachedLogits

    return CachedLogits(lambda tokens, cache: slots.logits(slot, tokens, cache), slots.base.cache())


# Completions of prompts, token by token: the likeliest one, or one drawn with a seed.


class DrawSettings(Protocol):
    """How tokens are drawn."""

    @property
    def tokens(self) -> int: ...
    @property
    def temperature(self) -> float: ...
    @property
    def seed(self) -> int: ...


class Sampler:
    """Completes prompts. The same seed gives the same completions, whatever else is completed.

    `logits` returns the logits after the last token of `[1, T]`: `[1, vocabulary]`, on the CPU.
    """

    def __init__(
        self,
        logits: Callable[[Tensor], Tensor],
        tokenizer: Any,
        drawing: DrawSettings,
        *,
        ends: frozenset[int],
        longest: int,
    ) -> None:
        self._logits = logits
        self._tokenizer = tokenizer
        self._template = ConversationTemplate(tokenizer)
        self._ends = ends
        self._longest = longest
        self._tokens = drawing.tokens
        self._temperature = drawing.temperature
        self._seed = drawing.seed

    def complete(self, prompt: str, *, is_chat: bool, check: Callable[[], None] = lambda: None) -> CompletionSample:
        """Complete one prompt; as the first turn of a conversation if the model was trained on conversations."""
        shown = self.chat_tokens((ChatMessage(role="user", content=prompt),)) if is_chat else self.prompt_tokens(prompt)
        end = self._end_text(is_chat=is_chat)
        text = self._text(list(self._drawn(shown, end, check)))
        return CompletionSample(prompt=prompt, completion=text.partition(end)[0] if end else text)

    def pieces(self, shown: Sequence[int], *, is_chat: bool) -> Iterator[str]:
        """Return the text that follows tokens, piece by piece; what is not whole yet waits: a character, or an end."""
        end = self._end_text(is_chat=is_chat)
        made: list[int] = []
        written = 0
        for token in self._drawn(shown, end, lambda: None):
            made.append(token)
            text = self._text(made)
            if not text.endswith(_UNFINISHED):
                ready = _before(text, end)
                yield text[written:ready]
                written = max(written, ready)
        text = self._text(made)
        rest = text.partition(end)[0] if end else text
        if len(rest) > written:
            yield rest[written:]

    def prompt_tokens(self, prompt: str) -> list[int]:
        """Return the tokens of a text that is to be continued."""
        return self._tokens_of(prompt, adds_specials=True)

    def chat_tokens(self, turns: Sequence[ChatMessage]) -> list[int]:
        """Return the tokens of a conversation that is to be answered. Raises `BadInput` if the template fails."""
        try:
            text = self._template.render(turns, opens=True)
        except UnwrittenError as error:
            message = f"the chat template of the base failed: {error}"
            raise BadInput(
                message, hint="complete prompts without it: plain=true, or --plain of stoker chat"
            ) from error
        return self._tokens_of(text, adds_specials=self._template.adds_specials)

    def _tokens_of(self, text: str, *, adds_specials: bool) -> list[int]:
        shown: list[int] = self._tokenizer(text, add_special_tokens=adds_specials)["input_ids"]
        # Some tokenizers append an end token, after which nothing would follow.
        while adds_specials and shown and shown[-1] == self._tokenizer.eos_token_id:
            shown.pop()
        return shown

    def _end_text(self, *, is_chat: bool) -> str:
        return self._template.end_text if is_chat else ""

    def _drawn(self, shown: Sequence[int], end: str, check: Callable[[], None]) -> Iterator[int]:
        """Return the tokens that follow, up to an end token, or those that complete the text of an end."""
        import torch

        draws = torch.Generator().manual_seed(self._seed)
        made: list[int] = []
        while [*shown, *made] and len(made) < self._tokens and len(shown) + len(made) < self._longest:
            check()
            token = self._next(self._logits(torch.tensor([[*shown, *made]]))[0], draws)
            if token in self._ends:
                return
            made.append(token)
            yield token
            # Each token has at least one of its letters.
            if end and end in self._text(made[-len(end) :]):
                return

    def _text(self, made: list[int]) -> str:
        return str(self._tokenizer.decode(made, skip_special_tokens=True))

    def _next(self, logits: Tensor, draws: torch.Generator) -> int:
        """Return the token that follows. Raises `BadInput` if the model's numbers are not finite."""
        import torch

        if not torch.isfinite(logits.max()):
            message = "the model's logits are not finite: its weights are not, or too large for this precision"
            raise BadInput(message, hint="train it again with a lower learning rate, or use another precision")
        if self._temperature == 0:
            return int(logits.argmax())
        # Relative to the largest: no overflow at any temperature.
        below = logits.double() - logits.double().max()
        chances = torch.softmax(below / self._temperature, dim=-1)
        return int(torch.multinomial(chances, 1, generator=draws))


def _before(text: str, end: str) -> int:
    """Return how much of a text can't be the text of an end, nor its beginning."""
    if end and end in text:
        return text.index(end)
    return len(text) - next((size for size in range(len(end), 0, -1) if text.endswith(end[:size])), 0)


def is_chat(data: Any) -> bool:
    """Return True if most of the training data are conversations, by its record, which is not trusted."""
    forms = data.get("forms") if isinstance(data, dict) else None
    if not isinstance(forms, dict) or not forms or any(type(count) is not int for count in forms.values()):
        return False
    return bool(max(forms, key=lambda form: forms[form]) in {"messages", "chat_pair"})
