#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
STOKER_HOME=$(mktemp -d)
export STOKER_HOME
trap 'rm -rf "$STOKER_HOME"' EXIT
cp "$here"/cluster.yaml "$here"/jobs.toml "$here"/wrong.yaml .

stoker check cluster.yaml jobs.toml
stoker cluster show
stoker cluster show --json | grep -q '"adapter_slots":5'

code=0
stoker cluster place jobs.toml --explain > placed.txt || code=$?
cat placed.txt
test "$code" = 1
grep -q "never on this fleet: needs 30.0 GiB" placed.txt

code=0
stoker check wrong.yaml 2> faults.txt || code=$?
cat faults.txt
test "$code" = 23
for words in "has 8 errors" "write 24576" "did you mean 'host'" "host is missing" "duplicate node name" \
  "max_adapters is 0" "SSH transport" "zero VRAM" "duplicate GPU UUID"; do
  grep -q "$words" faults.txt
done
