#!/usr/bin/env bash
# From a fresh machine to a model of your own: installs, translates with the model of the package,
# trains on number names (numbers written out in words, English to German), evaluates, exports,
# translates with the export.
# Usage: bash scripts/quickstart.sh [folder]; the folder must be new. Default: runs/quickstart here.
# Fails if the test numbers are translated badly, or if it takes ten minutes after the installation.
set -euo pipefail
unset CDPATH  # with it `cd` may go elsewhere, and prints where
caller="$PWD"
cd "$(dirname "$0")/.."
folder="runs/quickstart"
case "${1:-}" in
  "") ;;
  /*) folder="$1" ;;
  *) folder="$caller/$1" ;;
esac
if [ -e "$folder" ]; then
  echo "quickstart: $folder exists already; remove it, or name a new folder" >&2
  exit 1
fi
. scripts/environment.sh

step() { printf '\n== %s\n' "$*"; }

step "1/6 Installing"
make_environment datasets,serving
python=.venv/bin/python
started=$SECONDS

step "2/6 Translating with the model en-de, which comes with the package"
echo "Where is the station?" | "$python" scripts/translate.py --model=en-de

step "3/6 Training a tiny Transformer to translate number names (one to three minutes on two cores)"
"$python" scripts/train.py --run_dir="$folder/run" --preset=tiny --dataset=number_names/en-de \
  --vocabulary_size=200 --dropout=0.1 --learning_rate=0.003 --warmup_steps=100 --schedule=cosine \
  --train_steps=400 --checkpoint_steps=200 --average_last=1 --bleu_tokenize=char

step "4/6 Translating 500 test numbers, which training never saw"
"$python" - "$folder" <<'EOF'
import pathlib
import sys

from keras_transformer.data.datasets import DatasetSplit

pairs = DatasetSplit(name="number_names/en-de", split="test[:500]")
for side, lines in zip(("en", "de"), zip(*pairs)):
    path = pathlib.Path(sys.argv[1], f"test.{side}")
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
EOF
"$python" scripts/evaluate.py --run_dir="$folder/run" --source="$folder/test.en" \
  --target="$folder/test.de" --json > "$folder/checkpoint_metrics.json"
cat "$folder/checkpoint_metrics.json"

step "5/6 Exporting a SavedModel"
"$python" scripts/export.py --run_dir="$folder/run" --export_dir="$folder/export"

step "6/6 Translating with the SavedModel"
printf '%s\n' "forty-two" "two thousand and seventeen" \
  "nine hundred and ninety-nine thousand, nine hundred and ninety-eight" > "$folder/questions.en"
"$python" scripts/translate.py --saved_model="$folder/export/1" "$folder/questions.en" \
  > "$folder/answers.de"
paste -d '\n' "$folder/questions.en" <(sed 's/^/  -> /' "$folder/answers.de")

seconds=$((SECONDS - started))
"$python" - "$folder/checkpoint_metrics.json" "$seconds" <<'EOF'
import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    scores = json.load(file)
print(
    # Rounded down: 1.000 means that nothing is wrong.
    f"\nquickstart: exact_match={int(scores['exact_match'] * 1000) / 1000:.3f} "
    f"sacrebleu={int(scores['bleu'] * 10) / 10:.1f} "
    f"seconds={sys.argv[2]}"
)
sys.exit(scores["exact_match"] < 0.97)
EOF
if [ "$seconds" -ge 600 ]; then
  echo "quickstart: took $seconds s after the installation; two idle cores need less than 600" >&2
  exit 1
fi
