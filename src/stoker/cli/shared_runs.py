"""What is foreseen of trials that work together, on this machine as it is."""

from __future__ import annotations

from stoker.cli.context import CommandContext
from stoker.devices.admission import memory_here, shared_bytes
from stoker.engine.preview import ForecastVerdict, PlanPreview
from stoker.jobs.builder import JobBuild
from stoker.jobs.shared_forecast import SharedProcessCapacity, SharedProcessEstimate, foretell_companies


def companies_here(call: CommandContext, build: JobBuild, seen: PlanPreview) -> list[SharedProcessEstimate]:
    """Foretell the companies of an build's trials that would run; none of one whose stages all work alone."""
    known = {forecast.node for forecast in seen.forecasts if forecast.verdict is ForecastVerdict.HIT}
    together = [node for node in build.plan.nodes if node.stage.together and node.id not in known]
    trials = [trial for trial in build.trials if trial.nodes.final not in known]
    if not together or not trials:
        return []
    builder = call.builder()
    recipe = builder.catalogue.load(build.spec.recipe)
    room = SharedProcessCapacity(
        device_bytes=_most_free_bytes(call) if any(node.needs.gpu for node in together) else None,
        memory_bytes=memory_here().room_bytes,
    )
    return foretell_companies(together, trials, lambda trial: builder.shared_by(recipe, trial.spec.args), room)


def _most_free_bytes(call: CommandContext) -> int | None:
    """Return what the emptiest device has for work that shares it."""
    rooms = [
        shared_bytes(device.total_bytes, device.memory_type, device.free_bytes)
        for device in call.parts.devices
        if device.total_bytes is not None
    ]
    return max(rooms, default=None)
