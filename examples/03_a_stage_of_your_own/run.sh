#!/usr/bin/env bash
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cp "$here/words.py" "$here/story.txt" .
export PYTHONPATH=$PWD STOKER_COOKBOOKS=words:COOKBOOK
stoker recipes | grep words/top
stoker run words/top text=story.txt count=5
cat stoker-out/top/ranking.txt
echo "# a comment changes nothing" >> words.py
stoker run words/top text=story.txt count=5 | grep "nothing ran"
stoker run words/top text=story.txt count=3 | grep "1 ran, 1 cached"
