#!/usr/bin/env bash
# Reproduces one row of a table in docs/results: trains, plots, evaluates, prints the figure.
# Usage: bash scripts/reproduce.sh ROW DATA [SEEDS]
#   bash scripts/reproduce.sh                                lists the rows
#   bash scripts/reproduce.sh scan-simple-lstm data/scan     trains with seed 1
#   bash scripts/reproduce.sh g2p-geo data/g2p 1,2,3,4,5     also prints mean and spread over the
#                                                            seeds, and the figure of the ensemble
# DATA is the folder with the public files, plain or gzipped. A run that was stopped resumes with the
# same command; a run lies in runs/ROW-SEED, its curve there in curve.png, and its log (score with
# digests and versions, metrics, outputs) in docs/results/logs/ROW-SEED. DRY_RUN=1 prints the
# commands instead of running them.
set -euo pipefail
unset CDPATH  # with it `cd` may go elsewhere, and prints where

rows="scan-{simple,length}-{lstm,transformer,relative,rotary,universal,universal-fixed}
inflection-{kat,got,ara} inflection-short-{kat,got,ara}
g2p-{arm_e,dut,fre,geo,hbs_latn,hun,jpn_hira,vie_hanoi}
cogs-{relative,sinusoidal}
multi30k-{transformer,fast,lstm,universal,fr,raw}"
if [ $# -lt 2 ]; then
  printf 'usage: bash scripts/reproduce.sh ROW DATA [SEEDS]\nrows:\n%s\n' "$rows" >&2
  exit 2
fi
row="$1" seeds="${3:-1}"
if ! [ -d "$2" ]; then
  echo "reproduce: no folder $2; DATA is the folder with the public files" >&2
  exit 2
fi
data="$(cd "$2" && pwd)"
if ! [[ "$seeds" =~ ^[0-9]+(,[0-9]+)*$ ]]; then
  echo "reproduce: SEEDS must be numbers separated by commas, such as 1,2,3; got $seeds" >&2
  exit 2
fi
cd "$(dirname "$0")/.."

file() {  # the file of that name in DATA, plain or gzipped
  if [ -e "$data/$1" ]; then echo "$data/$1"; elif [ -e "$data/$1.gz" ]; then echo "$data/$1.gz"
  else echo "reproduce: $data has neither $1 nor $1.gz" >&2; return 1; fi
}

no_such_row() {
  printf 'reproduce: no row %s; rows:\n%s\n' "$row" "$rows" >&2
  exit 2
}

# Flags of train.py and evaluate.py, further files to evaluate on, and the figure of the table.
module=() task=() evaluate=() further=() metric="exact match"
case "$row" in
  scan-*)  # Lake and Baroni 2018; positions and Universal Transformer as in Csordas et al. 2021
    IFS=- read -r _ split model <<< "$row"
    train="$(file "tasks_train_$split.txt")"
    test="$(file "tasks_test_$split.txt")"
    module=(--user_module=examples/semantic_parsing.py)
    task=(--task=semantic_parsing --train_file="$train" --test_file="$test" --label_smoothing=0
      --train_steps=3000 --checkpoint_steps=500 --average_last=1 --clip_norm=1)
    transformer=(--preset=tiny --num_layers=3 --feed_forward_dim=256 --num_heads=8 --dropout=0.1
      --batch_sentences=256 --batch_tokens=16384 --learning_rate=0.001 --warmup_steps=400
      --schedule=inverse_sqrt)
    case "$model" in
      lstm) task+=(--preset=rnn-tiny --learning_rate=0.002 --warmup_steps=200 --batch_tokens=4096) ;;
      transformer) task+=("${transformer[@]}") ;;
      relative) task+=("${transformer[@]}" --positions=relative) ;;
      rotary) task+=("${transformer[@]}" --positions=rotary) ;;
      universal|universal-fixed)
        task+=(--preset=universal-tiny --num_steps=3 --feed_forward_dim=256 --num_heads=8
          --dropout=0.1 --batch_sentences=256 --batch_tokens=16384 --learning_rate=0.001
          --warmup_steps=400 --schedule=inverse_sqrt)
        [ "$model" = universal ] || task+=(--adaptive_steps=false) ;;
      *) no_such_row ;;
    esac ;;
  inflection-*)  # SIGMORPHON-UniMorph 2022; the settings of Wu, Cotterell and Hulden 2021, or a tenth
    language="${row##*-}"
    train="$(file "${language}_large.train")"
    dev="$(file "$language.dev")"
    test="$(file "$language.test")"
    module=(--user_module=examples/inflection.py)
    task=(--task=inflection --train_file="$train" --dev_file="$dev" --test_file="$test"
      --num_layers=4 --model_dim=256 --feed_forward_dim=1024 --num_heads=4 --dropout=0.3
      --norm_position=pre --label_smoothing=0.1 --learning_rate=0.001 --schedule=inverse_sqrt
      --batch_tokens=20000)
    case "$row" in
      "inflection-$language") task+=(--attention_dropout=0.3 --feed_forward_dropout=0.3
        --warmup_steps=4000 --batch_sentences=400 --train_steps=20000 --checkpoint_steps=500
        --average_best=1) ;;
      "inflection-short-$language") task+=(--attention_dropout=0.1 --feed_forward_dropout=0.1
        --warmup_steps=500 --batch_sentences=200 --train_steps=2000 --checkpoint_steps=250
        --average_last=4 --precision=mixed_bfloat16) ;;
      *) no_such_row ;;
    esac
    evaluate=(--overlap_with="$train") ;;
  g2p-*)  # SIGMORPHON 2021, task 1, medium; one setting for all languages
    language="${row#g2p-}"
    train="$(file "${language}_train.tsv")"
    dev="$(file "${language}_dev.tsv")"
    test="$(file "${language}_test.tsv")"
    task=(--task=pronunciation --train_file="$train" --dev_file="$dev" --test_file="$test"
      --preset=rnn-tiny --dropout=0 --learning_rate=0.004 --schedule=cosine --warmup_steps=150
      --batch_tokens=512 --train_steps=1500 --checkpoint_steps=500 --average_last=1 --clip_norm=1
      --precision=float32)
    metric="word error rate" ;;
  cogs-*)  # Kim and Linzen 2020; settings of Csordas et al. 2021
    train="$(file train.tsv)"
    dev="$(file dev.tsv)"
    in_distribution="$(file test.tsv)"
    test="$(file gen.tsv)"
    module=(--user_module=examples/semantic_parsing.py)
    task=(--task=semantic_parsing --train_file="$train" --dev_file="$dev" --test_file="$test"
      --num_layers=2 --model_dim=512 --feed_forward_dim=512 --num_heads=4 --dropout=0.1
      --batch_sentences=128 --batch_tokens=65536 --max_length=512 --learning_rate=0.0001
      --warmup_steps=1 --schedule=constant --clip_norm=1 --label_smoothing=0 --scale_embeddings=false
      --train_steps=20000 --checkpoint_steps=1000 --average_last=1 --validation_time_share=0)
    case "${row#cogs-}" in
      relative|sinusoidal) task+=(--positions="${row#cogs-}") ;;
      *) no_such_row ;;
    esac
    evaluate=(--categories_of="$test")
    further=("$dev" "$in_distribution") ;;
  multi30k-*)  # Wu et al. 2021: lower case, tokenized, joint BPE; or the captions as they are
    language=de dev=valid test=test.2016
    text=(--vocabulary_kind=word --vocabulary_size=12000 --vocabulary_normalization=identity
      --remove_bpe --bleu_tokenize=none --bleu_lowercase)
    case "${row#multi30k-}" in
      transformer|fast|lstm|universal) ;;
      fr) language=fr ;;
      raw) dev=val test=test_2016_flickr text=() ;;
      *) no_such_row ;;
    esac
    for side in train:train dev:$dev test:$test; do
      source="$(file "${side#*:}.en")"
      target="$(file "${side#*:}.$language")"
      task+=(--"${side%:*}"_source="$source" --"${side%:*}"_target="$target")
    done
    task+=(${text[@]+"${text[@]}"} --checkpoint_steps=100 --keep_checkpoints=30 --average_last=10
      --validation_time_share=0.03)
    case "${row#multi30k-}" in
      transformer|fast|fr|raw)
        task+=(--dropout=0.3 --learning_rate=0.005 --warmup_steps=2000 --batch_tokens=8192
          --train_steps=8000 --precision=mixed_bfloat16)
        if [ "$row" = multi30k-fast ]; then task+=(--preset=tiny-fast); else task+=(--preset=tiny); fi ;;
      lstm) task+=(--preset=rnn-tiny --dropout=0.3 --learning_rate=0.002 --warmup_steps=400
        --batch_tokens=4096 --clip_norm=1 --train_steps=2000) ;;
      universal) task+=(--preset=universal-tiny --dropout=0.2 --learning_rate=0.002
        --warmup_steps=600 --batch_tokens=4096 --train_steps=2000 --precision=auto) ;;
    esac
    evaluate=(--beam_size=5)
    metric=sacreBLEU ;;
  *) no_such_row ;;
esac

run() {  # a script; with DRY_RUN its command is printed
  set -- "$@" ${module[@]+"${module[@]}"}  # an empty array is an unset variable in macOS's bash
  if [ -z "${DRY_RUN:-}" ]; then
    .venv/bin/python "scripts/$1" "${@:2}"
  else
    printf 'python scripts/%s' "$1"
    printf ' %q' "${@:2}"
    echo
  fi
}

keep_log() {  # what scripts/results.py compares the pages with: score, curve and outputs of a run
  run evaluate.py --run_dir="$1" ${evaluate[@]+"${evaluate[@]}"} --json --output="$1/outputs.txt" \
    > "$1/score.json"
  mkdir -p "$2"
  cp "$1/score.json" "$2/score.json"
  for file in metrics.jsonl outputs.txt; do
    gzip -9 -n -c "$1/$file" > "$2/$file.gz"
  done
}

if [ -z "${DRY_RUN:-}" ]; then
  . scripts/environment.sh
  make_environment plot
fi
folders="" reports=""
for seed in ${seeds//,/ }; do
  folder="runs/$row-$seed"
  folders+="${folders:+,}$folder"
  run train.py --run_dir="$folder" --seed="$seed" "${task[@]}"
  run plot_run.py "$folder" --output="$folder/curve.png"
  report="$(run evaluate.py --run_dir="$folder" ${evaluate[@]+"${evaluate[@]}"})"
  printf '%s\n' "$report"
  reports+="$report"$'\n'
  [ -n "${DRY_RUN:-}" ] || keep_log "$folder" "docs/results/logs/$row-$seed"
  for path in ${further[@]+"${further[@]}"}; do
    run evaluate.py --run_dir="$folder" --file="$path"
  done
done
[ "$seeds" != "$seed" ] || exit 0
LC_ALL=C awk -F '  +' -v name="$metric" -v seeds="$seeds" '
  $1 == name { figures[++count] = $2; mean += $2 }
  END {
    if (count < 2) exit
    mean /= count
    for (each in figures) squares += (figures[each] - mean) ^ 2
    printf "%s, seeds %s: mean %.2f, standard deviation %.2f\n",
      name, seeds, mean, sqrt(squares / (count - 1))
  }' <<< "$reports"
if [ "$metric" = "word error rate" ]; then  # the shared task's systems are ensembles
  run evaluate.py --run_dir="$folders"
fi
