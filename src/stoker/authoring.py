"""What a cookbook imports: everything to declare kinds, stages, recipes and plans, and nothing else."""

from stoker.core.device import Needs
from stoker.core.errors import BadInput, Diagnostic, InvalidArgs, InvalidPlan, StageInputError, TemplateFailed
from stoker.core.retry import RetryOn, RetryPolicy
from stoker.core.text import parse_duration, parse_size
from stoker.engine.arg_types import Duration, InputPath, PathOrName, Plain, Size
from stoker.engine.args import arg
from stoker.engine.kinds import JsonKind, Kind, TextKind, TreeKind, check_files, check_json
from stoker.engine.plan import Plan, PlanBuilder, Tip, Tips
from stoker.engine.program import Program, checked_output, fill, gang_words
from stoker.engine.recipe import Category, Cookbook, Recipe, recipe
from stoker.engine.stage import (
    Digests,
    Member,
    ProcessSharing,
    SharedBase,
    SharedContext,
    SoloContext,
    Stage,
    StageContext,
    stage,
)

__all__ = [
    "BadInput",
    "Category",
    "Cookbook",
    "Diagnostic",
    "Digests",
    "Duration",
    "InputPath",
    "InvalidArgs",
    "InvalidPlan",
    "JsonKind",
    "Kind",
    "Member",
    "Needs",
    "PathOrName",
    "Plain",
    "Plan",
    "PlanBuilder",
    "ProcessSharing",
    "Program",
    "Recipe",
    "RetryOn",
    "RetryPolicy",
    "SharedBase",
    "SharedContext",
    "Size",
    "SoloContext",
    "Stage",
    "StageContext",
    "StageInputError",
    "TemplateFailed",
    "TextKind",
    "Tip",
    "Tips",
    "TreeKind",
    "arg",
    "check_files",
    "check_json",
    "checked_output",
    "fill",
    "gang_words",
    "parse_duration",
    "parse_size",
    "recipe",
    "stage",
]
