#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# A home of its own, so that it goes the same way every time.
STOKER_HOME=$(mktemp -d)
export STOKER_HOME
trap 'rm -rf "$STOKER_HOME"' EXIT
for version in old new worse slow; do
    mkdir -p $version
    cp "$here/answer.py" $version/
done
echo '{"perplexity": 9.80, "work": 20000}' > old/settings.json
echo '{"perplexity": 9.85, "work": 20000}' > new/settings.json
echo '{"perplexity": 10.2, "work": 20000}' > worse/settings.json
echo '{"perplexity": 9.80, "work": 100000}' > slow/settings.json

# A perplexity that is 0.5 % higher is within the limit of 2 %; 4 % is a regression.
stoker gate --baseline old --candidate new --limit latency=off -- python answer.py | tee said
grep "passed in 3 pairs" said
code=0
stoker gate --baseline old --candidate worse --limit latency=off --report gate.xml --report gate.md -- python answer.py 2> said || code=$?
test "$code" = 17
grep "regression: perplexity +4.08 %" said
grep 'failures="1"' gate.xml
# Beside the first report is a receipt, from which anybody can decide again.
stoker receipt verify gate.receipt.json

# Five times as slow. Pairs that take turns show it in spite of other programs on this machine.
code=0
stoker gate --baseline old --candidate slow --limit latency=50% --batch 10 -- python answer.py || code=$?
test "$code" = 17

# Stored times of another moment are no baseline: the gate can't decide, and says so.
(cd old && stoker bench --runs 5 -o ../old.bench.json -- python answer.py)
(cd new && stoker bench --runs 5 -o ../new.bench.json -- python answer.py)
code=0
stoker gate --baseline old.bench.json --candidate new.bench.json 2> said || code=$?
test "$code" = 18
grep "times of another moment drift" said
stoker gate --baseline old.bench.json --candidate new.bench.json --limit latency=off --format markdown
# What they measured has not changed since, so it can be run again, in turn.
stoker gate --baseline old.bench.json --candidate new.bench.json --limit latency=off --rerun | tee said
grep "passed in 3 pairs" said
