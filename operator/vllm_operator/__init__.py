"""vllm-operator: a Kubernetes operator for backend-aware vLLM deployments."""

__version__ = "0.1.0"
