"""What a cookbook imports: everything to declare kinds, stages, recipes and plans, and nothing else."""

from stoker.model.errors import ArgsFaults, Fault, StageInputError
from stoker.model.resources import Needs
from stoker.model.retry import RetryOn, RetryPolicy
from stoker.plan.arg_types import InputPath
from stoker.plan.args import arg
from stoker.plan.builder import PlanBuilder, Tip, Tips
from stoker.plan.context import StageContext
from stoker.plan.graph import Plan
from stoker.plan.kind import JsonKind, Kind, TextKind, TreeKind
from stoker.plan.recipe import Category, Cookbook, Recipe, recipe
from stoker.plan.stage import Stage, stage

__all__ = [
    "ArgsFaults",
    "Category",
    "Cookbook",
    "Fault",
    "InputPath",
    "JsonKind",
    "Kind",
    "Needs",
    "Plan",
    "PlanBuilder",
    "Recipe",
    "RetryOn",
    "RetryPolicy",
    "Stage",
    "StageContext",
    "StageInputError",
    "TextKind",
    "Tip",
    "Tips",
    "TreeKind",
    "arg",
    "recipe",
    "stage",
]
