"""Estimates of the GPU memory that an engine needs: weights, activations, CUDA graphs and KV cache. Pure.

model     model_facts and model_shape (from config.json), formats (bytes of its weights)
engine    engine (GPU and flags), parallelism
estimate  estimate; its parts weights, overhead (everything else), kv_cache
input     resolve (for a plan or a command), cases (from a line of JSON)
"""
