#!/usr/bin/env bash
set -euo pipefail
stoker run tabular/gbt data=iris model.trees=40
test -s stoker-out/gbt/report.html
stoker run tabular/gbt data=iris model.trees=40 | grep "nothing ran"
stoker run tabular/gbt data=iris model.trees=60 --dry-run
