"""MLflow with its file store: `log_metrics` with all numbers of a step at once, which is quicker than one by one."""

from __future__ import annotations

import shutil
import time

import mlflow
import scalars
import speak


def main() -> None:
    asked = speak.read_arguments()
    folder = asked.home / "mlruns"
    shutil.rmtree(folder, ignore_errors=True)
    mlflow.set_tracking_uri(folder.as_uri())
    values = [scalars.at(step) for step in range(asked.count)]
    with mlflow.start_run() as run:
        started = time.perf_counter()
        for step, given in enumerate(values):
            mlflow.log_metrics(given, step=step)
        seconds = time.perf_counter() - started
    client = mlflow.MlflowClient()
    rows = sum(len(client.get_metric_history(run.info.run_id, name)) for name in scalars.NAMES)
    speak.tell(asked, seconds=seconds, total=None, executed=rows)


main()
