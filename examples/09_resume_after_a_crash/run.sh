#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cp "$here/train.py" .
code=0
stoker run -- python train.py || code=$?
test "$code" = 45
stoker run -- python train.py
stoker logs last | grep "going on from step 40"
grep '"step": 100' stoker-out/train/model.json
stoker run attempts=2 -- python train.py --again
stoker logs last | grep "going on from step 40"
