"""The stages that complete prompts with a trained model.

Separate stages, so that another prompt repeats no training.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoker.authoring import StageContext, stage
from stoker.cookbooks.language.arguments import SampleArgs, device_of
from stoker.cookbooks.language.kinds import Adapter, LanguageModel, Samples
from stoker.cookbooks.language.schemas import CompletionSample, read_training

if TYPE_CHECKING:
    import torch
    from torch import Tensor


_USES = ("safetensors", "tokenizers", "torch", "transformers")


@stage("language/sample", version=1, uses=_USES, deterministic=False)
def sample(job: StageContext, adapter: Adapter, args: SampleArgs) -> Samples:
    """Complete prompts with a base and an adapter."""
    from stoker.cookbooks.language.compute.general_base import open_base
    from stoker.cookbooks.language.compute.slots import Slots
    from stoker.cookbooks.language.peft import read_adapter

    device, base = _device(job), Path(args.base)
    held, path = open_base(base, device=device, dtype=args.dtype, base_dtype=args.base_dtype, path=args.path)
    job.log(path)
    read = read_adapter(adapter.path)
    slots = Slots(held, count=1, rank=read.spec.rank, targets=read.spec.targets, compiles=False, records=False)
    slots.load(0, read)
    return _sampled(job, base, adapter.path, args, lambda tokens: slots.logits(0, tokens), held.shape.positions)


@stage("language/sample_model", version=1, uses=_USES, deterministic=False)
def sample_model(job: StageContext, model: LanguageModel, args: SampleArgs) -> Samples:
    """Complete prompts with a whole model."""
    import torch

    from stoker.cookbooks.language.bases import read_base
    from stoker.cookbooks.language.compute.transformers_base import load_transformers

    device = _device(job)
    held = load_transformers(model.path, dtype=args.dtype, device=device)

    def logits(tokens: Tensor) -> Tensor:
        with torch.no_grad():
            made: Tensor = held(tokens.to(device), use_cache=False).logits
        return made[:, -1].float().cpu()

    return _sampled(job, model.path, model.path, args, logits, read_base(model.path).positions)


def _device(job: StageContext) -> str:
    device, note = device_of(job.devices)
    if note:
        job.log(note)
    return device


def _sampled(
    job: StageContext, base: Path, trained: Path, args: SampleArgs, logits: Callable[[Tensor], Tensor], longest: int
) -> Samples:
    from stoker.cookbooks.language.tokens import open_tokenizer

    sampler = Sampler(
        logits,
        open_tokenizer(base),
        longest=longest,
        tokens=args.tokens,
        temperature=args.temperature,
        seed=args.seed,
    )
    chats = is_chat(read_training(trained)["data"].get("forms"))
    made = [sampler.complete(prompt, is_chat=chats, check=job.check) for prompt in args.prompts]
    for one in made:
        job.log(f"{one['prompt']!r} → {one['completion']!r}")
    return job.save(Samples, made)


# Completions of prompts, token by token: the likeliest one, or one drawn with a seed.


class Sampler:
    """Completes prompts. The same seed gives the same completions, whatever else is completed.

    `logits` returns the logits after the last token of `[1, T]`: `[1, vocabulary]`, on the CPU.
    """

    def __init__(
        self,
        logits: Callable[[Tensor], Tensor],
        tokenizer: Any,
        *,
        longest: int,
        tokens: int,
        temperature: float,
        seed: int,
    ) -> None:
        self._logits = logits
        self._tokenizer = tokenizer
        self._longest = longest
        self._tokens = tokens
        self._temperature = temperature
        self._seed = seed

    def complete(self, prompt: str, *, is_chat: bool, check: Callable[[], None] = lambda: None) -> CompletionSample:
        """Complete one prompt; as the first turn of a conversation if the model was trained on conversations."""
        import torch

        text, adds_specials = (self._asked(prompt), False) if is_chat else (prompt, True)
        shown: list[int] = self._tokenizer(text, add_special_tokens=adds_specials)["input_ids"]
        # Some tokenizers append an end token, after which nothing would follow.
        ends = self._ends()
        while shown and shown[-1] in ends and not is_chat:
            shown.pop()
        draws = torch.Generator().manual_seed(self._seed)
        made: list[int] = []
        while shown + made and len(made) < self._tokens and len(shown) + len(made) < self._longest:
            check()
            token = self._next(self._logits(torch.tensor([shown + made]))[0], draws)
            if token in ends:
                break
            made.append(token)
        return CompletionSample(prompt=prompt, completion=str(self._tokenizer.decode(made, skip_special_tokens=True)))

    def _next(self, logits: Tensor, draws: torch.Generator) -> int:
        import torch

        if self._temperature == 0:
            return int(logits.argmax())
        # Relative to the largest: no overflow at any temperature.
        below = logits.double() - logits.double().max()
        chances = torch.softmax(below / self._temperature, dim=-1)
        return int(torch.multinomial(chances, 1, generator=draws))

    def _asked(self, prompt: str) -> str:
        from stoker.cookbooks.language.tokens import CHATML

        template = self._tokenizer.chat_template or CHATML
        return str(
            self._tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}],
                tokenize=False,
                add_generation_prompt=True,
                chat_template=None if self._tokenizer.chat_template else template,
            )
        )

    def _ends(self) -> frozenset[int]:
        named = [self._tokenizer.eos_token_id]
        for text in ("<|im_end|>", "<|eot_id|>"):
            number = self._tokenizer.convert_tokens_to_ids(text)
            if number is not None and number != self._tokenizer.unk_token_id:
                named.append(number)
        return frozenset(one for one in named if one is not None)


def is_chat(forms: Any) -> bool:
    """Return True if most of the training data are conversations."""
    if not isinstance(forms, dict) or not forms:
        return False
    return bool(max(forms, key=lambda form: forms[form]) in {"messages", "chat_pair"})
