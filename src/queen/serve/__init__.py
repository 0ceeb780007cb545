"""A prediction server around a guard: the Open Inference Protocol over REST and gRPC, keys, durable state, limits.

`run` is the process, `app` answers over REST and `grpc` over gRPC, `service` puts the parts together, `batcher` joins
requests into batches. Rooms: `protocol/` (what is sent), `access/` (who may ask), `limits/` (how much of the server),
`queue/` (where requests wait), `release/` (when answers leave), `admin/`, `telemetry/`, `querylog/`, `ray/`. Commands
and `make serve` import this package; it only ever sees a finished bundle, and never imports the benchmark.
"""
