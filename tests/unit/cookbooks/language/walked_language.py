"""Recipes of the cookbook compiled, their stages run in this process, and examples without a tokenizer library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stoker.authoring import Plan, StageContext
from stoker.cookbooks.language import recipes
from stoker.cookbooks.language.examples import ExampleFacts, ExampleSet
from stoker.cookbooks.language.kinds import Examples
from stoker.engine.stage import perform

END = 256
"""The bundled base's token after a text; those before it are bytes."""


def compiled(name: str, **given: Any) -> Plan:
    recipe = next(one for one in recipes.COOKBOOK.recipes if one.leaf == name)
    plan: Plan = recipe.compile(recipe.args.build(given, owner=recipe.name))
    return plan


def examples(folder: Path, *, count: int = 24, held_out: int = 4) -> Examples:
    """Sums, as the bundled base's tokenizer writes them: `3+4=7`, of which the answer is learned."""
    texts = [f"{number % 7}+{number % 5}=" for number in range(count)]
    answers = [f"{number % 7 + number % 5}" for number in range(count)]
    tokens = [[*text.encode(), *answer.encode(), END] for text, answer in zip(texts, answers, strict=True)]
    trained = [[place >= len(text) for place in range(len(one))] for text, one in zip(texts, tokens, strict=True)]
    lengths = [len(one) for one in tokens]
    facts = ExampleFacts(
        examples=count,
        held_out=held_out,
        tokens=sum(lengths),
        trained_tokens=sum(map(sum, trained)),
        longest=max(lengths),
        cut=0,
        skipped=0,
        skipped_lines=[],
        max_seq_len=64,
        train_on="completion",
        forms={"completion": count},
        template="",
        pad=259,
        notes=[],
    )
    made = ExampleSet(
        tokens=np.concatenate(tokens).astype(np.int32),
        trained=np.concatenate(trained).astype(bool),
        starts=np.cumsum([0, *lengths], dtype=np.int64),
        held_out=np.arange(held_out, dtype=np.int64),
        facts=facts,
    )
    folder.mkdir(parents=True)
    Examples.save(made, folder)
    return Examples.at(str(folder))


def run_node(
    plan: Plan,
    name: str,
    folder: Path,
    *,
    said: list[dict[str, Any]] | None = None,
    scratch: Path | None = None,
    **inputs: Any,
) -> Any:
    """Run one node of a plan in this process, and check what it made."""
    node = plan.node(name)
    out = folder / name
    out.mkdir(parents=True)
    job = context(name, out, said=said, scratch=scratch, diverges_on=node.stage.diverges_on)
    made = perform(node.stage, job, inputs, node.stage.args.make(node.args))
    node.stage.output.check_folder(str(out))
    return made


def context(
    node: str, out: Path, *, said: list[dict[str, Any]] | None = None, scratch: Path | None = None, **more: Any
) -> StageContext:
    emit = (said if said is not None else []).append
    place = str(scratch or out.parent / f"{out.name}.scratch")
    return StageContext(node=node, out=str(out), emit=emit, is_cancelled=lambda: False, scratch=place, **more)
