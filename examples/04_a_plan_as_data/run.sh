#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
stoker run "$here/plan.json" --dry-run
stoker run "$here/plan.json"
test -d stoker-out/two-neighbours/far
code=0
stoker run "$here/broken.json" || code=$?
test "$code" = 40
