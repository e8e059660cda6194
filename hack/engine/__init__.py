"""A stand-in for the inference engine that starts as a real one does, with the real one's caches, without a GPU."""
