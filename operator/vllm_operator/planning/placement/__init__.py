"""The choice of GPU and image, or the reason why none fits.

fitting (large enough?), targets (allowed GPUs), policy (order); texts: explanations, shortage (if none is allowed)
"""
