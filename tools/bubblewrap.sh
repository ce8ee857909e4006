#!/usr/bin/env bash
# Bubblewrap for the tests of the sandbox: the one that is there, else the distribution's, which needs apt-get and root.
# Status 0 if it starts on this machine; otherwise says why not, and the tests go on with what there is.
set -uo pipefail

install() {
  local as_root=()
  if [ "$(id -u)" != 0 ]; then as_root=(sudo -n); fi
  "${as_root[@]}" apt-get update -q && "${as_root[@]}" apt-get install -q -y --no-install-recommends bubblewrap
}

if ! command -v bwrap >/dev/null && ! install >&2; then
  echo "bubblewrap is not installed, and could not be (see above)" >&2
  exit 1
fi
bwrap --ro-bind / / --unshare-pid --unshare-net true
