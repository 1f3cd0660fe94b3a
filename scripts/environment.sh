# Sourced by the other shell scripts: makes .venv in the repository's root, once, and installs
# the package into it, with the extras that `make_environment EXTRA,EXTRA` is given.

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.13 python3.12 python3.11 python3.10 python3; do
    if [ -n "$candidate" ] && "$candidate" -c \
        'import sys, ensurepip, venv; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "needs Python 3.10 to 3.13 with venv on the PATH; install one, or set PYTHON to it" >&2
  return 1
}

make_environment() {
  local extra="${1:+[$1]}" python
  if ! .venv/bin/python -m pip --version > /dev/null 2>&1; then  # missing, or half made
    python=$(find_python)
    echo "Making a virtual environment in .venv with $("$python" --version) ..."
    "$python" -m venv .venv
    # The pip that comes with older Pythons takes minutes to choose versions.
    .venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --upgrade pip
  fi
  echo "Installing the package and what it needs into .venv ..."
  .venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --editable ".$extra"
}
