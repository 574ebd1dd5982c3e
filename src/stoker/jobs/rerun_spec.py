"""An earlier job's order, taken again: what its folder says was wanted, with today's code and files."""

from __future__ import annotations

from stoker.core.frozen import changed
from stoker.engine.plan import TrialNodes
from stoker.jobs.build_context import CompiledJob, JobCompiler, RunRequest
from stoker.jobs.job_folder import JobFolder
from stoker.jobs.program import RECIPE, ProgramWords
from stoker.jobs.secret_mask import CONFIG, read_config
from stoker.jobs.trials import TRIALS, Trial, read_trials


def reorder(desk: JobCompiler, folder: JobFolder, *, name: str = "", at_once: int = 1) -> CompiledJob:
    """Take an earlier job's order again, perhaps under another name. All its trials keep their numbers and labels."""
    spec = folder.spec()
    if spec.recipe.endswith(".json"):
        return desk.order(RunRequest(target=spec.recipe, name=name or spec.name))
    recipe = desk.catalogue.load(spec.recipe)
    config = read_config(folder)
    argv = config.get("program")
    program: ProgramWords | None = None
    if spec.recipe == RECIPE and isinstance(argv, list) and argv:
        program = desk.program_words(tuple(map(str, argv)), spec.folder, at_once=at_once)
    order = desk.order_again(recipe, trials_of_job(folder), name=name or spec.name, program=program)
    # Where its values came from has not changed.
    said = {CONFIG: folder.paper(CONFIG)} if config else {}
    return changed(order, papers={**said, **order.papers})


def trials_of_job(folder: JobFolder) -> list[Trial]:
    """Return a job's trials; one for a job that was ordered without a configuration."""
    trials = read_trials(folder.paper(TRIALS))
    if trials:
        return trials
    spec = folder.spec()
    nodes = TrialNodes(final="", keep=(), nodes=())
    return [Trial(number=1, label="", point={}, args=spec.args, job_id=spec.job_id, nodes=nodes)]
