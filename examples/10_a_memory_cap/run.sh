#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# A memory of its own, so that it goes the same way every time.
STOKER_HOME=$(mktemp -d)
export STOKER_HOME
trap 'rm -rf "$STOKER_HOME"' EXIT
cp "$here/hold.py" .
code=0
stoker run mib=50,4000 memory=50M -- python hold.py {mib} > said || code=$?
cat said
test "$code" = 46
grep "✓ mib=50 " said
grep "✗ mib=4000 .*[Mm]emory" said
code=0
stoker run memory=900T -- python hold.py 50 2> refused || code=$?
test "$code" = 46
grep "it needs 900.0 TiB; this machine has" refused
