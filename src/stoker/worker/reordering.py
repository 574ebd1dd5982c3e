"""An earlier job's order, taken again: what its folder says was wanted, with today's code and files."""

from __future__ import annotations

from stoker.model.frozen import changed
from stoker.plan.sweep_plan import TrialNodes
from stoker.worker.config_paper import CONFIG, read_config
from stoker.worker.job_folder import JobFolder
from stoker.worker.ordering import Desk, Order, Wanted
from stoker.worker.program_order import RECIPE, ProgramWords
from stoker.worker.trials import TRIALS, Trial, read_trials


def reorder(desk: Desk, folder: JobFolder, *, name: str = "", at_once: int = 1) -> Order:
    """Take an earlier job's order again, perhaps under another name. All its trials keep their numbers and labels."""
    spec = folder.spec()
    if spec.recipe.endswith(".json"):
        return desk.order(Wanted(target=spec.recipe, name=name or spec.name))
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
    """Give a job's trials; one for a job that was ordered without a configuration."""
    trials = read_trials(folder.paper(TRIALS))
    if trials:
        return trials
    spec = folder.spec()
    nodes = TrialNodes(final="", keep=(), nodes=())
    return [Trial(number=1, label="", point={}, args=spec.args, job_id=spec.job_id, nodes=nodes)]
