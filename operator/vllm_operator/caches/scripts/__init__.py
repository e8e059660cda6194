"""Programs that run in Pods, as text. They use only Python's standard library, and `fetch_adapters` huggingface_hub."""
