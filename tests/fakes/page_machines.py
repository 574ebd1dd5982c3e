"""Recorded machines in memory, for the pages: telemetry with gaps and spikes, what ran where, adapters, models."""

from __future__ import annotations

import math
import random

from stoker.api.monitor import Monitor, SpanQuery
from stoker.core.errors import NotFound
from stoker.devices.telemetry.series import TelemetryRow
from stoker.protocol.screen_messages import (
    AdapterBase,
    AdapterBoard,
    AdapterRow,
    LineageInput,
    ModelPage,
    ModelRow,
    PriorityWaits,
    ResultCard,
    SimulatedJob,
    SimulatedStart,
    SimulateRequest,
    SimulationForecast,
    SimulationView,
)
from stoker.protocol.telemetry_messages import (
    AlertView,
    DeviceTelemetry,
    TelemetryView,
    TimelineSpan,
    TimelineView,
)
from stoker.protocol.view_messages import MachineHolder
from stoker.views.telemetry_view import TelemetrySpan, telemetry_view
from tests.fakes.page_sweep import MARKUP

GIB = 1 << 30

CARD = f"""# Model card: species from iris

gbt ranks first of 3 models by cross-validation: accuracy **0.960 ± 0.025**, {MARKUP} and [a page](https://example.org).

## Scores on held-out rows

| model | accuracy | log loss |
| --- | --- | --- |
| gbt | 0.967 [0.900, 1.000] | 0.113 |
| knn \\| weighted | 0.933 [0.833, 1.000] | 0.284 |

## Limits

- Scores hold for rows like these.
  - Groups in them would make every score too good.
- The test part has 30 rows.

```python
import joblib
model = joblib.load("best-model.joblib")  # {MARKUP}
```
"""


def digest(number: int) -> str:
    """Return a digest that tells results apart."""
    return f"{number:02x}" * 32


def holders(names: dict[str, float], uuid: str) -> tuple[MachineHolder, ...]:
    """Return jobs that hold so many GiB of a device each."""
    return tuple(
        MachineHolder(
            job=f"{at:064x}",
            name=name,
            devices=(uuid,),
            memory_bytes=round(gib * GIB),
            ram_bytes=4 * GIB,
            is_shared=True,
        )
        for at, (name, gib) in enumerate(names.items(), 1)
    )


def rows(uuid: str, from_s: float, to_s: float) -> list[TelemetryRow]:
    """Return rows of ten seconds: load in waves, a spike of heat, and a gap in the middle."""
    chance = random.Random(uuid)
    found = []
    for start in range(int(from_s) // 10 * 10, int(to_s), 10):
        part = (start - from_s) / (to_s - from_s)
        if 0.45 < part < 0.5:
            continue
        load = 55 + 32 * math.sin(part * 20 + len(uuid)) + 5 * chance.random()
        heat = 88.0 if 0.7 < part < 0.705 else 45 + load / 4
        middle = ((load, 8), (40 + 30 * part, 1), (120 + 3 * load, 30), (heat, 2), (1900 + load, 40))
        values = tuple((max(0.0, value - room), value, min(4000.0, value + room)) for value, room in middle)
        kept = values if uuid else (*values[:2], None, None, None)
        found.append(TelemetryRow(start_s=start, count=10, values=kept))
    return found


class PageMachines(Monitor):
    """The part of a fleet in memory with machines over time, adapters, models and a simulation."""

    now_s: float

    def telemetry(self, name: str, query: SpanQuery | None = None) -> TelemetryView:
        machine, query = self.machine(name), query or SpanQuery()
        to_s = self.now_s if query.to_s is None else min(query.to_s, self.now_s)
        from_s = to_s - 3600 if query.from_s is None else query.from_s
        uuids = {str(one["uuid"]): str(one["name"]) for one in machine.devices}
        present = {uuid: DeviceTelemetry(device=uuid, temperature_c=71.0) for uuid in uuids}
        hot = AlertView(device=next(iter(uuids), ""), kind="hot", severity=60, message="88 °C", for_s=90.0)
        return telemetry_view(
            name,
            [({"uuid": uuid, "name": title}, rows(uuid, from_s, to_s)) for uuid, title in {"": "", **uuids}.items()],
            present,
            TelemetrySpan(from_s=from_s, to_s=to_s, period_s=10, points=query.points, now_s=self.now_s),
            reported_s=self.now_s - 12,
            alerts=(hot,) if machine.symptoms else (),
        )

    def timeline(self, query: SpanQuery, machine: str = "") -> TimelineView:
        chance = random.Random(11)
        to_s = self.now_s if query.to_s is None else query.to_s
        from_s = to_s - 3600 if query.from_s is None else query.from_s
        names = ("resnet", "lora", "bert-large", "ablation", "gbt", "probe")
        spans: list[TimelineSpan] = []
        for one in self.machines():
            for device in one.devices or ({"uuid": ""},):
                at = from_s + 600 * chance.random()
                while at < to_s - 600:
                    took = 600 + 9000 * chance.random() ** 2
                    number = chance.randrange(1, 40)
                    ending = chance.choice(("completed", "completed", "completed", "failed", "released"))
                    is_over = at + took < to_s
                    spans.append(
                        TimelineSpan(
                            machine=one.name,
                            devices=(device["uuid"],) if device["uuid"] else (),
                            job=f"{len(spans):064x}",
                            name=f"{chance.choice(names)}/{number}",
                            attempt=1,
                            from_s=at,
                            to_s=at + took if is_over else None,
                            ending=ending if is_over else "",
                        )
                    )
                    at += took + 900 * chance.random()
        found = tuple(span for span in spans if machine in ("", span.machine))
        return TimelineView(server_s=self.now_s, from_s=from_s, to_s=to_s, spans=found)

    def card(self, ref: str) -> ResultCard:
        return ResultCard(job=ref, digest=digest(1), path="model-card.md", text=CARD)

    def adapters(self) -> AdapterBoard:
        chance = random.Random(5)
        losses = sorted((1.1 + 0.8 / rank + 0.2 * chance.random(), rank) for rank in (4, 8, 16, 32, 64) * 6)
        found = tuple(
            AdapterRow(
                job=f"lora/{at}",
                label=MARKUP if at == 3 else f"rank {rank}",
                state="running" if at == 5 else "completed",
                place=at,
                place_on_data=at,
                rank=rank,
                alpha=2.0 * rank,
                data="/data/chat.jsonl",
                val_loss=loss,
                train_loss=loss - 0.1,
                epoch=3.0,
                step=1200,
                result=digest(at % 200),
                parameters={"lr": 2e-4 if at % 2 else 1e-4, "dropout": None},
            )
            for at, (loss, rank) in enumerate(losses, 1)
        )
        base = AdapterBase(base="Qwen/Qwen2.5-0.5B", adapters=found, total=len(found))
        return AdapterBoard(bases=(base, AdapterBase(base=f"tiny {MARKUP}", adapters=found[:2], total=2)))

    def models(self, after: str = "", limit: int = 50, *, digest: str = "", job: str = "") -> ModelPage:
        found = [self._model(at) for at in range(1, 9)]
        kept = [one for one in found if one.digest.startswith(digest) and job in ("", one.job)]
        return ModelPage(models=tuple(kept))

    def _model(self, at: int) -> ModelRow:
        code = (LineageInput(name="code tree", digest=digest(170)), LineageInput(name="train.py", digest=digest(171)))
        parents = tuple(
            LineageInput(name=f"stage/{other}", digest=digest(other), job=f"{other:064x}")
            for other in (2 * at, 2 * at + 1)
            if other < 9
        )
        return ModelRow(
            digest=digest(at),
            job=f"{at:064x}",
            name=f"stage/{at}",
            label=MARKUP if at == 2 else "",
            recipe="tabular/gbt",
            machine="desk",
            submitter="anna",
            attempt=1,
            made_s=self.now_s - 4000 * at,
            size_bytes=3_000_000 * at,
            is_pinned=at == 1,
            is_pruned=at == 7,
            metrics={"accuracy": 0.96, "log_loss": 0.113},
            data=(LineageInput(name="iris.csv", digest=digest(160)),),
            code=code if at < 3 else code[1:],
            parents=parents,
            commit="c" * 40,
        )

    def simulate(self, request: SimulateRequest) -> SimulationView:
        kinds = (*(one.name for one in self.machines()), "rtx-4090", "a100-eight")
        for wanted in request.add:
            if wanted.like not in kinds:
                raise NotFound(f"unknown kind of machine {wanted.like!r}", hint="did you mean 'rtx-4090'?")
        count = len(self.machines())
        added = sum(one.count for one in request.add) - len(request.remove)
        is_changed = bool(request.add or request.remove or request.fail)
        jobs = tuple(
            SimulatedJob(
                job=f"resnet/{at}",
                now=SimulatedStart(machine="lab1", starts_s=self.now_s + 600 * at, is_guess=at > 3),
                changed=SimulatedStart(machine="added-rtx-4090-1", starts_s=self.now_s + 60 * at)
                if is_changed
                else None,
            )
            for at in range(10, 14)
        )
        return SimulationView(
            at_s=self.now_s,
            now=self._forecast(count, 6 * 3600.0),
            changed=self._forecast(count + added, 6 * 3600.0 * count / max(1, count + added)) if is_changed else None,
            jobs=jobs,
            kinds=kinds,
        )

    def _forecast(self, machines: int, lasts_s: float) -> SimulationForecast:
        return SimulationForecast(
            done_s=self.now_s + lasts_s,
            machines=machines,
            jobs=41,
            is_guess=True,
            waits=(PriorityWaits(priority=0, jobs=35, median_s=lasts_s / 3, p95_s=lasts_s * 0.8, max_s=lasts_s * 0.9),),
            step_s=lasts_s / 60,
            waiting=tuple(max(0, 35 - at * 35 // 55) for at in range(61)),
        )
