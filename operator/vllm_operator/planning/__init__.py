"""Planning: from a VLLMDeployment and the GPUs of the cluster to a plan with a reason for each choice. Pure.

steps     planner; outcome is its result, pinning keeps a plan, differences compares two
input     pod_template (allowed additions of users to Pods), pod_fields (fields that the API server knows)
          validation (errors of the API server; cel evaluates its rules)
          presets (merged into the spec beforehand, by preset_merge), artifact (which artifacts the operator's settings allow)
choices   engine, placement
"""
