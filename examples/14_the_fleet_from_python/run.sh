#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cp "$here"/manifest.toml "$here"/train.py "$here"/fleet.py .
STOKER_HOME=$(mktemp -d)
export STOKER_HOME

stoker serve --listen 127.0.0.1:0 &
serve=$!
work=
stop() {
  kill $work $serve 2>/dev/null || true
  wait
  rm -rf "$STOKER_HOME"
}
trap stop EXIT
for _ in $(seq 300); do
  test -e "$STOKER_HOME/state/serve.json" && break
  sleep 0.1
done
stoker work --name here --slots 2 &
work=$!

# The Python that Stoker is installed in; `python` may be another.
"$(dirname "$(command -v stoker)")/python" fleet.py | tee said.txt
grep -q "best: lr=0.1" said.txt
grep -q '"lr": 0.1' best/model.json
stoker jobs --status completed
stoker jobs show descent --json | grep -c '"state":"completed"' | grep -qx 3
