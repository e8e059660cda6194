"""Planning: from a VLLMDeployment and the GPUs of the cluster to a plan with a reason for each choice. Pure.

steps     planner; outcome is its result and compares plans, pinning keeps a plan
input     pod_template and validation (errors of the API server; cel evaluates its rules), presets (merged into the spec beforehand)
choices   engine (image, flags, backends), placement (GPUs)
"""
