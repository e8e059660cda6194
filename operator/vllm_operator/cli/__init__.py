"""The commands of `vllm-operator` and `kubectl vllm`. Most of them need no cluster."""
