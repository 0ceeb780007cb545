#!/bin/sh
# MLServer in an environment of its own, with a small network, and a guard in front of it: examples/mlserver/run.sh
# Needs `queen` (pip install 'queen-guard[serve,bench]') on the PATH and a package index that is reachable; writes to build/mlserver.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
out=${1:-build/mlserver}
mkdir -p "$out"
[ -x "$out/venv/bin/mlserver" ] || { python3 -m venv "$out/venv" && "$out/venv/bin/pip" install --quiet mlserver; }
cp "$here/model.py" "$here/model-settings.json" "$here/settings.json" "$out/"
python3 "$here/train.py" "$out"

cd "$out"
venv/bin/mlserver start . > mlserver.log 2>&1 &
trap 'kill $!' EXIT INT TERM
until curl -sf http://127.0.0.1:8080/v2/models/digits/ready > /dev/null; do
  kill -0 $! || { cat mlserver.log; exit 1; }
  sleep 0.5
done
"$here/../guard_upstream.sh" "${UPSTREAM:-http://127.0.0.1:8080}" digits train.npz held_out.npz
