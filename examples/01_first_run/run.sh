#!/usr/bin/env bash
set -euo pipefail
stoker run tabular/gbt data=iris trees=40
test -s stoker-out/gbt/report.html
stoker run tabular/gbt data=iris trees=40 | grep "nothing ran"
stoker run tabular/gbt data=iris trees=60 --dry-run
