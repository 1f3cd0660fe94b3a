#!/usr/bin/env bash
# Runs all checks: linter, formatter, type checker, tests. Arguments go on to pytest.
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
TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -m pytest "$@"
