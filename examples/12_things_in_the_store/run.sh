#!/usr/bin/env bash
set -euo pipefail
STOKER_HOME=$(mktemp -d)
export STOKER_HOME
trap 'rm -rf "$STOKER_HOME"' EXIT
mkdir -p data/raw
seq 1 50000 > data/raw/numbers.csv
cp data/raw/numbers.csv data/raw/copy.csv
echo "numbers, twice" > data/README

stoker store put data --as numbers
stoker store put data --as numbers-again
stoker store refs

stoker get numbers back
diff -r data back -x .stoker.json

stoker get numbers --bundle one.tar.zst
touch -d "10 years ago" data/README
stoker get numbers-again --bundle two.tar.zst
cmp one.tar.zst two.tar.zst

stoker store put one.tar.zst --unpack --as from-the-bundle
stoker store verify --full
stoker store prune
