#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# A memory of its own, so that it goes the same way every time.
STOKER_HOME=$(mktemp -d)
export STOKER_HOME
trap 'rm -rf "$STOKER_HOME"' EXIT
cp "$here/train.py" .
stoker run lr=1e-1,1e-2 seed=0,1 -- python train.py --lr {lr} --seed {seed}
test -s stoker-out/train/lr=0.1,seed=0/model.json
stoker run lr=1e-1,1e-2,1e-3 seed=0,1 -- python train.py --lr {lr} --seed {seed} | tee said
grep "6 ok (4 kept)" said
stoker compare last --by val_loss | grep "best: lr=0.1"
test -s stoker-out/train/compare/compare.html
code=0
stoker run lr=5,1e-1 -- python train.py --lr {lr} || code=$?
test "$code" = 1
stoker logs last/1 | grep "ValueError: val_loss is beyond all use"
