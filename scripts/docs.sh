#!/usr/bin/env bash
# Builds the documentation into build/docs; open build/docs/index.html. Any warning is an error, and
# so is a link to a page or heading that does not exist. Arguments are passed to sphinx-build.
set -euo pipefail
unset CDPATH  # with it `cd` may go elsewhere, and prints where
cd "$(dirname "$0")/.."
. scripts/environment.sh
make_environment docs

echo "Building the documentation ..."
.venv/bin/python scripts/pages.py  # line numbers of the page about the papers; the notebook
TF_CPP_MIN_LOG_LEVEL=3 .venv/bin/python -m sphinx -W --keep-going --quiet --color \
  -d build/doctrees "$@" docs build/docs
echo "Built build/docs/index.html"
