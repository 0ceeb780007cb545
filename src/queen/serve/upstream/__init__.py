"""A network that runs on another server of the Open Inference Protocol (Triton, KServe, MLServer), asked for features.

`model` is what the guard takes for its network; `head` finds the last layer's weights where nobody has them; `rest` and
`grpc` carry tensors, over what `client` says they have in common, `wire`, `address` and `tensors`; `health` looks all
the time whether the other server still runs the same network; `settings` are those of `queen guard`.
"""
