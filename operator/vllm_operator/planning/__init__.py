"""Planning: from a VLLMDeployment and the GPUs of the cluster to a plan with a reason for each choice. Pure.

steps     planner; outcome is its result, notes are for the user, pinning keeps a plan, differences compares two
input     inventory (GPUs), model (facts), pod_template (what users may add to Pods), pod_fields (fields that the API server knows)
          validation (what the API server refuses; cel evaluates its rules)
          presets (merged into the spec beforehand, by preset_merge), artifact (which artifacts the operator's settings allow)
choices   engine, memory (an estimate of what an engine needs), placement
"""
