"""The model card: what was trained on what, how good it is, what it is not good for, and how to use it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from stoker.cookbooks.language.bundled import BASES
from stoker.cookbooks.language.records import Sample, Training
from stoker.cookbooks.language.reporting.tables import base_word, fenced, headline, summary, title, updates

_SHOWN_SAMPLES = 5


def model_card(training: Training, samples: Sequence[Sample] = ()) -> str:
    """Write the card as Markdown."""
    sections = [
        f"# Model card: {_safe(title(training))}",
        f"{_safe(headline(training))}.",
        f"## Data\n\n{_bullets(_data(training))}",
        f"## Training\n\n{_bullets(_training(training))}",
        f"## Losses\n\n{_table(summary(training)['table'])}",
    ]
    if samples:
        shown = [f"{fenced(one['prompt'])}\n\n{fenced(one['completion'])}" for one in samples[:_SHOWN_SAMPLES]]
        sections.append("## Samples\n\nEach prompt above what was made of it.\n\n" + "\n\n".join(shown))
    sections += [f"## Limits\n\n{_bullets(_LIMITS)}", f"## Use\n\n{_use(training)}"]
    return "\n\n".join(sections) + "\n"


_LIMITS = (
    "The held-out part comes from the same file as the rest: it says nothing about other texts.",
    "What the base gets wrong, and what it should not say, an adapter does not mend by itself.",
)


def _data(training: Training) -> list[str]:
    facts = training["data"]

    def count(name: str) -> str:
        return _said(facts.get(name, "?"))

    learned = "prompts too" if facts.get("train_on") == "all" else "of prompts and conversations the answers alone"
    examples = "example" if facts.get("examples") == 1 else "examples"
    lines = [
        f"{count('examples')} {examples}, {count('held_out')} of them held out for the evaluation",
        f"{count('tokens')} tokens, {count('trained_tokens')} of them learned ({learned})",
    ]
    forms = facts.get("forms")
    if isinstance(forms, dict) and forms:
        lines.append(
            "lines: " + ", ".join(f"{_said(number)} {_FORMS.get(form, form)}" for form, number in forms.items())
        )
    if facts.get("template"):
        lines.append(f"conversations written by {_TEMPLATES.get(facts['template'], facts['template'])}")
    notes = facts.get("notes")
    return [*lines, *(notes if isinstance(notes, list) else [])]


_FORMS = {"text": "plain texts", "completion": "prompts with completions", "messages": "conversations"}
_TEMPLATES = {"tokenizer": "the tokenizer's own chat template", "chatml": "ChatML: the tokenizer has no template"}


def _training(training: Training) -> list[str]:
    base, curve = training["base"], training["curve"]
    lines = [
        f"base: {base['name']} ({base['family']}, {base['parameters']:,} weights)",
        f"trained: {training['weights']:,} weights, on {training['device']} in {training['dtype']}",
        ", ".join(f"{name} {_said(value)}" for name, value in training["settings"].items() if value is not None),
        f"{updates(curve['points'][-1]['step'] if curve['points'] else 0)}; kept: after {curve['kept']}",
    ]
    return [
        *lines,
        *training["notes"],
        *(f"{name} {version}" for name, version in sorted(training["versions"].items())),
    ]


def _use(training: Training) -> str:
    name = base_word(training)
    if training["method"] == "full":
        return (
            "```python\n"
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
            'model = AutoModelForCausalLM.from_pretrained("train_full")\n'
            'tokenizer = AutoTokenizer.from_pretrained("train_full")\n'
            "```\n\n"
            "The model lies in the folder `train_full` beside this card."
        )
    merge = f"`stoker run language/merge base={_safe(name)} adapter=FOLDER`"
    if name in BASES:
        return f"Its base comes with Stoker and lies in no hub: {merge} makes a model of both that transformers loads."
    return (
        "```python\n"
        "from peft import PeftModel\n"
        "from transformers import AutoModelForCausalLM\n"
        f"base = AutoModelForCausalLM.from_pretrained({name!r})\n"
        'model = PeftModel.from_pretrained(base, ".")\n'
        "```\n\n"
        f"Or put it into its base: {merge}."
    )


def _said(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_safe(line)}" for line in lines)


def _table(table: dict[str, Any]) -> str:
    lines = [table["columns"], ["---"] * len(table["columns"]), *table["rows"]]
    return "\n".join(f"| {' | '.join(_safe(cell) for cell in line)} |" for line in lines)


def _safe(text: str) -> str:
    """Keep what a user's file calls things from being read as Markdown or HTML."""
    return re.sub(r"([\\`*|<>])", r"\\\1", " ".join(text.split()))
