#!/usr/bin/env bash
# Serves this folder with TensorFlow Serving: gRPC at port 8500, REST and metrics at 8501.
#
#   bash serve.sh            start the server; Ctrl-C ends it
#   bash serve.sh --print    print its command
#
# Other arguments are further flags of the server. For GPUs set TF_ENABLE_ONEDNN_OPTS=1, and give
# docker --gpus=all and the image tensorflow/serving:2.20.0-gpu.
set -euo pipefail

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

environment=(
  # On CPUs oneDNN keeps kernels for every shape, and memory grows. Only models in bfloat16, which
  # are slow without it, are exported with 1.
  TF_ENABLE_ONEDNN_OPTS=@one_dnn@
  # Large pages of memory: a little faster.
  GLIBC_TUNABLES=glibc.malloc.hugetlb=1
)
flags=(
  # Versions to serve.
  --model_config_file=/models/@name@/models.config
  # Reads that file again, so that edits take effect.
  --model_config_file_poll_wait_seconds=60
  # Translates requests together that wait for a thread.
  --enable_batching
  # Sizes and threads of it.
  --batching_parameters_file=/models/@name@/batching_parameters.txt
  # Requests over gRPC at once; by default 4 a core, more fail.
  --grpc_max_threads=128
  # The same over REST.
  --rest_api_num_threads=128
  # As long as clients wait by default; the server's is 30 s.
  --rest_api_timeout_in_ms=60000
  # Metrics for Prometheus.
  --monitoring_config_file=/models/@name@/monitoring.config
)
command=(
  docker run --rm --init -p 8500:8500 -p 8501:8501 -v "$folder:/models/@name@:ro"
  # --cpus=2 --memory=4g  # as many cores as num_batch_threads in batching_parameters.txt
  "${environment[@]/#/--env=}" tensorflow/serving:2.20.0 "${flags[@]}"
)

if [ "${1-}" = --print ]; then
  printf '%q ' "${command[@]}" "${@:2}"
  echo
else
  exec "${command[@]}" "$@"
fi
