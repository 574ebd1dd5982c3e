#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# A memory of its own, so that it goes the same way every time.
STOKER_HOME=$(mktemp -d)
export STOKER_HOME
trap 'rm -rf "$STOKER_HOME"' EXIT
cp -r "$here/base.yaml" "$here/sweep.yaml" "$here/model" "$here/train.py" .
stoker config show --config base.yaml model=large --why model.width -- python train.py | grep "model/large.yaml:2:8"
STOKER__LR=0.2 stoker config show --config base.yaml -- python train.py | grep "lr .*0.2 .*STOKER__LR"
stoker run --config base.yaml model=small,large -- python train.py | tee said
grep "2 ok" said
stoker run --config base.yaml --config sweep.yaml -- python train.py | tee said
grep "5 ok" said
stoker compare last --no-plots | grep "best: model.width=8,model.depth=3,seed=0"
stoker explain last lr | grep "base.yaml:4:5"
code=0
stoker run --config base.yaml model=larg lrr=1 -- python train.py 2> said || code=$?
test "$code" = 21
grep "did you mean 'large'" said
grep "did you mean 'lr'" said
