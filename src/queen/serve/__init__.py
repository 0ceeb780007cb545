"""A prediction server around a guard: the Open Inference Protocol over REST and gRPC, keys, durable state, limits."""
