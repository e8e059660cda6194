"""Estimates of the GPU memory that an engine needs: weights, activations, CUDA graphs and KV cache."""
