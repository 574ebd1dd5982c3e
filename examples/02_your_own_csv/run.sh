#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$(dirname "$(command -v stoker)")/python
"$python" "$here/make_csv.py" wine.csv
stoker run tabular/knn data=wine.csv target=cultivar
mv wine.csv renamed.csv
stoker run tabular/knn data=renamed.csv target=cultivar | grep "nothing ran"
