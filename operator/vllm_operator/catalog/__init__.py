"""What is known: GPUs, vLLM versions, models, backends, quirks, crash signatures. Data with a typed loader."""
