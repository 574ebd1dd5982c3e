"""The recipe of the cookbook."""

from __future__ import annotations

from letters.stages import CountArgs, Letters, count
from stoker.authoring import Category, Cookbook, Plan, PlanBuilder, recipe


@recipe("letters/count", category=Category.DATA_PREP, output=Letters, summary="count the letters of a text")
def compile_count(args: CountArgs) -> Plan:
    """Count them."""
    return PlanBuilder("letters").start(count, args).finish()


COOKBOOK = Cookbook(
    name="letters", summary="letters of a text", recipes=(compile_count,), stages=(count,), kinds=(Letters,)
)
