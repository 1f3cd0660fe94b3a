#!/usr/bin/env bash
# From a fresh machine to a model that translates: installs, trains on number names (written out
# in words, English to German), evaluates, exports, and asks the exported SavedModel.
# Usage: bash scripts/quickstart.sh [folder], where folder (default runs/quickstart) is made anew.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
folder="${1:-runs/quickstart}"

step() { printf '\n== %s\n' "$*"; }

step "1/5 Installing"
make_environment
started=$(date +%s)
if [ -e "$folder" ]; then
  echo "$folder exists already: remove it, or name another folder: scripts/quickstart.sh FOLDER" >&2
  exit 1
fi

step "2/5 Training a tiny Transformer on number_names/en-de"
.venv/bin/python scripts/train.py --run_dir="$folder/run" --preset=tiny \
  --dataset=number_names/en-de

step "3/5 Translating the test numbers and comparing"
.venv/bin/python scripts/evaluate.py --run_dir="$folder/run" | tee "$folder/scores.txt"

step "4/5 Exporting a SavedModel"
.venv/bin/python scripts/export.py --run_dir="$folder/run" --export_dir="$folder/export"

step "5/5 Asking the SavedModel"
