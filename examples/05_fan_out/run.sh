#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$here STOKER_COOKBOOKS=chapters:COOKBOOK
cp "$here/story.txt" story.txt
stoker run chapters/compare text=story.txt
cat stoker-out/compare/chapters.txt
sed -i 's/By noon/Before noon/' story.txt
stoker run chapters/compare text=story.txt --json | grep '"kind":"stage_skipped"' | grep 'measure\[0\]'
