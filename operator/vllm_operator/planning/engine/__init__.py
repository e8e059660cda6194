"""Settings of the engine: version, parallel sizes, backends, flags and variables.

image (and vLLM version), serving (flags from the spec alone), rule_input and backends, adapters, overrides (of the user)
"""
