"""What a cookbook imports: everything to declare kinds, stages, recipes and plans, and nothing else."""

from stoker.model.errors import ArgsFaults, BadInput, PlanFaults, StageInputError, TemplateFailed
from stoker.model.faults import Fault
from stoker.model.resources import Needs
from stoker.model.retry import RetryOn, RetryPolicy
from stoker.model.units import parse_duration, parse_size
from stoker.plan.arg_types import Duration, InputPath, Plain, Size
from stoker.plan.args import arg
from stoker.plan.builder import PlanBuilder, Tip, Tips
from stoker.plan.context import StageContext
from stoker.plan.filling import fill
from stoker.plan.graph import Plan
from stoker.plan.kind import JsonKind, Kind, TextKind, TreeKind, check_files, check_json
from stoker.plan.program.outputs import checked_output
from stoker.plan.program.program import Program, gang_words
from stoker.plan.recipe import Category, Cookbook, Recipe, recipe
from stoker.plan.seats import Alone, Company, Seat
from stoker.plan.sharing import SharedBase
from stoker.plan.stage import Stage, stage
from stoker.plan.together import Digests, Together

__all__ = [
    "Alone",
    "ArgsFaults",
    "BadInput",
    "Category",
    "Company",
    "Cookbook",
    "Digests",
    "Duration",
    "Fault",
    "InputPath",
    "JsonKind",
    "Kind",
    "Needs",
    "Plain",
    "Plan",
    "PlanBuilder",
    "PlanFaults",
    "Program",
    "Recipe",
    "RetryOn",
    "RetryPolicy",
    "Seat",
    "SharedBase",
    "Size",
    "Stage",
    "StageContext",
    "StageInputError",
    "TemplateFailed",
    "TextKind",
    "Tip",
    "Tips",
    "Together",
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
