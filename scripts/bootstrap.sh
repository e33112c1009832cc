#!/usr/bin/env bash
# Makes the environment that every make target uses. Called by `make venv` as: PYTHON=... bootstrap.sh DIRECTORY
#
# Needs a Python 3.11 or later and pip's way to the packages, nothing else. Installs wheels only, each checked against
# the lock's hashes, so no package's set-up code runs; then the project itself from this folder, with no dependencies
# and no build isolation, so nothing is fetched outside the lock.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${1:?usage: bootstrap.sh DIRECTORY}

fit() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python=${PYTHON:-}
if [ -n "$python" ]; then
  fit "$python" || { echo "bootstrap: PYTHON=$python is not a Python 3.11 or later; name another one" >&2; exit 1; }
else
  for candidate in python3 python3.13 python3.12 python3.11; do
    if fit "$candidate"; then python=$candidate; break; fi
  done
  [ -n "$python" ] || {
    echo "bootstrap: no Python 3.11 or later on PATH (tried python3, python3.11 to 3.13); install one or give PYTHON=" >&2
    exit 1
  }
fi

# Debian ships Python without ensurepip, in which case the venv module makes nothing of use.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    package=$("$python" -c 'import sys; print(f"python3.{sys.version_info.minor}-venv")')
    echo "bootstrap: $python has no ensurepip; installing Debian's $package"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq </dev/null
    apt-get install -y -qq --no-install-recommends "$package" </dev/null
  else
    echo "bootstrap: $python cannot make environments (no ensurepip); on Debian and Ubuntu: apt install python3-venv" >&2
    exit 1
  fi
fi

# An environment of the same interpreter is brought up to date in place; any other one is made anew.
who='import sys; print(sys.base_prefix, sys.version)'
if [ "$("$target/bin/python" -c "$who" 2>/dev/null)" != "$("$python" -c "$who")" ]; then
  "$python" -m venv --clear "$target"
fi
pip=("$target/bin/python" -m pip --quiet --disable-pip-version-check --no-input)
"${pip[@]}" install --require-hashes --only-binary :all: --requirement requirements-dev.lock
"${pip[@]}" install --no-deps --no-build-isolation --editable .
echo "bootstrap: $target is ready: $("$target/bin/python" --version), requirements-dev.lock, gpuwarden (editable)"
