#!/usr/bin/env bash
# Runs the linter, the formatter, the type checker and the tests. With --slow as first argument it runs
# the tests marked slow too, installs what they need (Debian's packages only as root), and fails if a
# test was skipped that could have run. Other arguments are passed to pytest.
set -euo pipefail
unset CDPATH  # with it `cd` may go elsewhere, and prints where
cd "$(dirname "$0")/.."
. scripts/environment.sh
markers=(-m "not slow")
if [ "${1:-}" = "--slow" ]; then
  shift
  markers=(--strict-skips)
  if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    missing=()
    command -v gcc > /dev/null || missing+=(gcc libc6-dev)
    command -v chromium-headless-shell chromium chromium-browser google-chrome > /dev/null ||
      missing+=(chromium-headless-shell)
    if [ "${#missing[@]}" -gt 0 ]; then
      echo "Installing ${missing[*]} ..."
      apt-get update -qq && apt-get install -qq -y --no-install-recommends "${missing[@]}" > /dev/null ||
        echo "Could not install all of them; the tests that need them say so" >&2
    fi
  fi
  make_environment test,test-backends
else
  make_environment test
fi

echo "Checking style ..."
.venv/bin/ruff check .
.venv/bin/ruff format --check .
echo "Checking types ..."
.venv/bin/mypy
echo "Running the tests ..."
TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -m pytest "${markers[@]}" "$@"
