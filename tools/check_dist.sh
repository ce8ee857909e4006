#!/usr/bin/env bash
# Build sdist and wheel into a folder, the wheel from the sdist, and try the wheel in an environment that has no checkout on its path.
#
#   tools/check_dist.sh VENV FOLDER
#
# VENV has the dependencies; they are seen from the environment made here, the checkout is not. Exit code 1 names what is missing.
set -euo pipefail
VENV=$(realpath "$1")
FOLDER=$2
ROOT=$(cd "$(dirname "$0")/.." && pwd)

mkdir -p "$FOLDER"
rm -f "$FOLDER"/rredcot-*
"$VENV/bin/python" -m build --outdir "$FOLDER" "$ROOT"
"$VENV/bin/python" -m twine check --strict "$FOLDER"/rredcot-*

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$VENV/bin/python" -m venv "$work/venv"
python=$work/venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check --no-deps "$FOLDER"/rredcot-*.whl
# an added path, not PYTHONPATH: .pth files in it, the checkout's editable one, are not read
"$VENV/bin/python" -c 'import site; print(site.getsitepackages()[0])' > "$("$python" -c 'import site; print(site.getsitepackages()[0])')/dependencies.pth"
cd "$work"
"$python" "$ROOT/tools/check_installed.py"
"$work/venv/bin/rredcot" list > /dev/null
"$work/venv/bin/rredcot" --version
