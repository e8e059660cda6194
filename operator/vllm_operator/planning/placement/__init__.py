"""The choice of GPU and image, or the reason why none fits.

targets (allowed GPUs), fitting (large enough), policy (order); texts: explanations, shortage (if none fits)
"""
