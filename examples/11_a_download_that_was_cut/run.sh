#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
STOKER_HOME=$(mktemp -d)
export STOKER_HOME
mkdir -p served fetched
head -c 7000000 /dev/urandom > served/model.bin
coproc SERVER { cd served && exec python3 "$here/serve.py"; }
trap 'kill "$SERVER_PID" 2>/dev/null || true; rm -rf "$STOKER_HOME"' EXIT
read -r address <&"${SERVER[0]}"

stoker fetch "$address/model.bin" --out fetched --json > news
grep -c '"phase":"retry"' news
grep '"phase":"done"' news
cmp served/model.bin fetched/model.bin

stoker fetch "$address/model.bin" --out fetched | grep "present"
stoker check fetched/model.bin

printf x >> fetched/model.bin
code=0
stoker check fetched/model.bin || code=$?
test "$code" = 15

code=0
stoker fetch "$address/model.bin" --out other --sha256 "$(printf '0%.0s' {1..64})" || code=$?
test "$code" = 13
test ! -e other/model.bin
