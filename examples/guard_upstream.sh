#!/bin/sh
# From a running server of the Open Inference Protocol to a guarded one:
#   examples/guard_upstream.sh http://127.0.0.1:8080 digits train.npz held_out.npz
#
# The server must give two outputs besides what clients want: features (what goes into the last layer) and logits (what
# comes out of it). train.npz holds x and y, held_out.npz images x like your clients', which did not train the model.
# See docs/upstream.md. Stop it with Ctrl-C; everything it writes is in ./guarded.
set -eu

UPSTREAM=$1 MODEL=$2 TRAIN=$3 HELD_OUT=$4 PORT=${PORT:-8000}
export QUEEN_HOME=guarded/home

# 1. Fit the defense, once: the network stays where it is, the bundle holds its last layer and the evidence.
[ -d guarded/bundle ] || queen protect --upstream "$UPSTREAM" --upstream-model "$MODEL" \
  --data "$TRAIN" --calibration "$HELD_OUT" --out guarded/bundle

# 2. A key for a client, shown once.
KEY=$(queen keys new alice --home "$QUEEN_HOME")

# 3. Guard it. From now on clients ask this server, and nobody else may reach the other one: close its port to them.
queen guard guarded/bundle --upstream "$UPSTREAM" --name "$MODEL" --port "$PORT" --grpc-port -1 &
trap 'kill $!' EXIT INT TERM
until curl -sf "http://127.0.0.1:$PORT/v2/health/ready" > /dev/null; do
  kill -0 $! || exit 1
  sleep 0.2
done

# 4. Ask it as any client of the protocol does; features and logits are not to be had.
curl -s -H "Authorization: Bearer $KEY" "http://127.0.0.1:$PORT/v2/models/$MODEL"
echo
echo "guarded: http://127.0.0.1:$PORT/v2/models/$MODEL/infer (key $KEY)"
[ -n "${ONCE:-}" ] || wait
