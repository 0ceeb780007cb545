#!/bin/sh
# From data to an application with a guarded model and two workers, in a folder of its own; docs/apps.md explains it.
# Usage: sh examples/protected_app.sh FOLDER [PORT]
set -eu
examples=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && cd "$1"
port=${2:-8000}

python "$examples/protect_digits.py" digits
python -m uvicorn --app-dir "$examples" fastapi_app:app --workers 2 --port "$port" &
trap 'kill $!' EXIT

until python -c "import socket; socket.create_connection(('127.0.0.1', $port), 1)" 2> /dev/null; do
    kill -0 $!
    sleep 1
done
python "$examples/app_clients.py" "127.0.0.1:$port"
queen clients --ledger clients.sqlite
queen alarms --ledger clients.sqlite
