#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
sweep=(language/lora base=tiny data=sums rank=4,8 lr=1e-3,3e-3 epochs=1)
stoker run "${sweep[@]}" | tee said
grep "4 ok. Best rank=8,lr=0.003" said
grep -q '"peft_type": "LORA"' stoker-out/lora/best/adapter_config.json
test -s stoker-out/lora/rank=4,lr=0.001/model-card.md
stoker run "${sweep[@]}" | grep "4 ok (4 kept)"
cp "$here/adapters.toml" .
stoker adapters run adapters.toml
test -s checkpoints/chats/best/metadata.json
stoker adapters board adapters.toml | tee said
grep sums said
stoker run language/merge base=tiny adapter=stoker-out/lora/best
test -s stoker-out/merge/model.safetensors
cp "$here/spec.yaml" "$here/faq.csv" .
stoker run language/lora --config spec.yaml --name spec | tee said
grep "2 ok" said
grep -q '"name": "faq.csv"' stoker-out/spec/best/training.json
code=0
stoker run language/lora --config spec.yaml data.1.weigth=3 rnk=8 2> said || code=$?
test "$code" = 21
grep "did you mean 'rank'" said
stoker recipes show language/lora --schema > lora.schema.json
grep -q '"weight"' lora.schema.json
