"""The VLLMDeployment API: types, condition types and reasons, label names.

This package imports nothing of ours. Everything else speaks its vocabulary.
"""
