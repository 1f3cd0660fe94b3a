#!/usr/bin/env bash
# Runs the linter, the formatter, the type checker and the tests; with --slow as first argument the
# tests marked slow too. Other arguments are passed to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
make_environment test

echo "Checking style ..."
.venv/bin/ruff check .
.venv/bin/ruff format --check .
echo "Checking types ..."
.venv/bin/mypy
echo "Running the tests ..."
markers="not slow"
if [ "${1:-}" = "--slow" ]; then
  markers=""
  shift
fi
TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -m pytest -m "$markers" "$@"
