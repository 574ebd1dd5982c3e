#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$(dirname "$(command -v stoker)")/python
stoker run sequence/gru horizon=3 epochs=6 stride=3 | tee said
grep "gru on waves: RMSE" said
test -s stoker-out/gru/model.pt
grep -q "^training,1," stoker-out/gru/curve.csv
stoker run sequence/gru horizon=3 epochs=6 stride=3 | grep "nothing ran"
"$python" "$here/make_series.py" machine.csv
stoker run sequence/cnn data=machine.csv target=doing window=16 epochs=4 | tee said
grep "cnn on a CSV file: balanced accuracy" said
grep -q "Rows were put in the order of 'moment'" stoker-out/cnn/model-card.md
