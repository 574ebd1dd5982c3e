"""XGBoost with the evaluation that it prints, and its own checkpoints."""

from __future__ import annotations

import argparse
import os

import numpy as np
import xgboost as xgb

parser = argparse.ArgumentParser()
parser.add_argument("--eta", type=float, default=0.1)
parser.add_argument("--rounds", type=int, default=30)
parser.add_argument("--checkpoints", default="runs")
parser.add_argument("--xgb_model")
args = parser.parse_args()

random = np.random.default_rng(0)
x = random.uniform(-1, 1, (20000, 20))
y = (x[:, 0] * x[:, 1] + 0.1 * random.normal(size=len(x)) > 0).astype(int)
os.makedirs(args.checkpoints, exist_ok=True)
done = 0
if args.xgb_model:
    done = xgb.Booster(model_file=args.xgb_model).num_boosted_rounds()
    print(f"continuing after {done} rounds")
model = xgb.XGBClassifier(
    n_estimators=args.rounds - done,
    learning_rate=args.eta,
    eval_metric=["logloss", "auc"],
    callbacks=[xgb.callback.TrainingCheckPoint(args.checkpoints, interval=10)],
)
sets = [(x[:16000], y[:16000]), (x[16000:], y[16000:])]
model.fit(*sets[0], eval_set=sets, verbose=True, xgb_model=args.xgb_model)
