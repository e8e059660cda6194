"""The choice of GPU and image, or the reason why none fits.

fitting (large enough?), targets (allowed GPUs), policy (order), promises (GPUs that other plans must leave),
groups (replicas on several nodes);
texts: explanations, shortage (if none is allowed)
"""
