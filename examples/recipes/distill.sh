#!/usr/bin/env bash
# Trains a student on a teacher's translations (Kim and Rush 2016) and scores it on the test set.
#
#     bash examples/recipes/distill.sh
#
# Arguments are flags of train, beside those of en-de-student.flags. The teacher is en-de in the
# package; TEACHER=--run_dir=runs/a,runs/b is an ensemble, --model=FOLDER another toolkit's model.
# The student begins with parts of en-de.

set -euo pipefail
teacher=${TEACHER:-"--model=en-de"}
corpus=data/tatoeba_ende distilled=data/distilled
mkdir -p $distilled

# Each sentence once; the teacher searches as it does by default.
gunzip -c $corpus/train.en.gz | awk '!seen[$0]++' > $distilled/source.en
keras-transformer translate "$teacher" --output=$distilled/source.de $distilled/source.en

# No empty translation, and none that is far from its source's length: it lacks a part, or loops.
paste $distilled/source.en $distilled/source.de | awk -F '\t' -v out=$distilled/train '
  { source = length($1); target = length($2) }
  target > 0 && target <= 2 * source + 15 && source <= 2 * target + 15 {
    print $1 > (out ".en"); print $2 > (out ".de")
  }'
wc -l $distilled/source.en $distilled/train.en

python examples/recipes/first_student.py runs/first-student
flags=--flagfile=examples/recipes/en-de-student.flags
keras-transformer train $flags --run_dir=runs/student-3000 "$@"
keras-transformer train $flags --run_dir=runs/student --start_from=runs/student-3000 \
  --learning_rate=0.001 --warmup_steps=50 --train_steps=1000 --checkpoint_steps=100 "$@"
keras-transformer evaluate --run_dir=runs/student --beam_size=1
