"""Write a long curve to MLflow's usual store; print experiment and run: `python curve_mlflow.py FOLDER COUNT`."""

from __future__ import annotations

import sys
import time
from itertools import islice

import curve_values
from mlflow import MlflowClient
from mlflow.entities import Metric

A_TIME = 1000
"""It takes no more at once."""

client = MlflowClient(f"sqlite:///{sys.argv[1]}/mlflow.db")
experiment = client.create_experiment("curve", artifact_location=f"file://{sys.argv[1]}/artifacts")
run = client.create_run(experiment).info.run_id
now_ms = int(time.time() * 1000)
steps = enumerate(curve_values.values(int(sys.argv[2])))
while part := list(islice(steps, A_TIME)):
    metrics = [Metric(curve_values.NAME, value, now_ms + step, step) for step, value in part]
    client.log_batch(run, metrics=metrics)
client.set_terminated(run)
print(f"{experiment} {run}")
