"""A prediction server around a guard: the Open Inference Protocol over REST and gRPC, keys, durable state, limits.

`run` is the process, `app` and `grpc` are its two doors, `service` puts the parts together, `batcher` joins requests
into batches. Rooms: `protocol/`, `access/`, `admin/`, `telemetry/`, `querylog/`, `ray/`. Commands and `make serve`
import this package; it only ever sees a finished bundle, and never imports the benchmark.
"""
