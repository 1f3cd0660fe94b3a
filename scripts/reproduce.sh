#!/usr/bin/env bash
# Trains and evaluates a recipe of examples/recipes with one or more seeds.
# Usage: bash scripts/reproduce.sh RECIPE [SEED ...]
#   bash scripts/reproduce.sh                                   lists the recipes
#   bash scripts/reproduce.sh multi30k-transformer              trains with seed 1
#   bash scripts/reproduce.sh g2p-geo 1 2 3
# The first comment of a recipe says which files it needs. A stopped run resumes with the same command.
# A run is runs/RECIPE-SEED; its score, metrics and outputs are kept in docs/results/logs/RECIPE-SEED.
set -euo pipefail
unset CDPATH  # with it `cd` may go elsewhere, and prints where
cd "$(dirname "$0")/.."
recipe="examples/recipes/${1:-}.flags"
if ! [ -f "$recipe" ]; then
  echo "usage: bash scripts/reproduce.sh RECIPE [SEED ...], with one of these recipes:" >&2
  (cd examples/recipes && printf '  %s\n' *.flags | sed 's/\.flags$//') >&2
  exit 2
fi
name="$1"
shift
. scripts/environment.sh
make_environment
# Flags of evaluate, one word each.
evaluate="$(sed -n 's/^# evaluate: //p' "$recipe")"
for seed in "${@:-1}"; do
  run="runs/$name-$seed" log="docs/results/logs/$name-$seed"
  .venv/bin/python scripts/train.py --flagfile="$recipe" --seed="$seed" --run_dir="$run"
  .venv/bin/python scripts/evaluate.py --run_dir="$run" $evaluate --json --output="$run/outputs.txt" \
    | sed "s/^{/{\"commit\": \"$(git describe --always --dirty --exclude='*' --abbrev=12)\", /" > "$run/score.json"
  cat "$run/score.json"
  mkdir -p "$log"
  cp "$run/score.json" "$log/score.json"
  for file in metrics.jsonl outputs.txt; do
    gzip -9 -n -c "$run/$file" > "$log/$file.gz"
  done
done
