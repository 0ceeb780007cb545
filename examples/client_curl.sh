#!/bin/sh
# Ask a served model with curl. After `make serve`: KEY=the-key-it-printed sh examples/client_curl.sh
# Usage: KEY=... sh client_curl.sh [REQUEST.json] [HOST:PORT] [MODEL]
set -eu
request=${1:-build/serve/digit.json}
server=${2:-127.0.0.1:8000}
model=${3:-digits}

# The key goes through a pipe, so that it is in no list of processes.
printf 'Authorization: Bearer %s\n' "$KEY" |
    curl --silent --show-error --fail-with-body --max-time 30 --header @- --data "@$request" \
        "http://$server/v2/models/$model/infer"
echo
