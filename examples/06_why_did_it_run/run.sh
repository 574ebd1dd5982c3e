#!/usr/bin/env bash
set -euo pipefail
stoker run tabular/knn data=wine neighbours=3
stoker run tabular/knn data=wine neighbours=5 --dry-run
stoker run tabular/knn data=wine neighbours=5
stoker explain knn/train_knn | grep "neighbours"
stoker run tabular/knn data=wine neighbours=5 --rerun evaluate
stoker store
stoker store prune --max-size 1M
