#!/usr/bin/env bash
# A Chromium for the tests of the report's page: the one that is there, else playwright's own, else the distribution's.
set -euo pipefail
python=$1

if command -v chromium chromium-browser google-chrome >/dev/null; then exit 0; fi
if "$python" -m playwright install chromium; then exit 0; fi
as_root=()
if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
"${as_root[@]}" apt-get update -q
"${as_root[@]}" apt-get install -q -y --no-install-recommends chromium
