"""Observed Pods, starts and crashes of one VLLMDeployment. Pure.

observation  the input, `ObservedState` (with parsed Pods, worst first), and whether a start is stalled
rollout      the state of the Deployment: replicas, paused, refused Pods
draining     Pods that finish their requests before they stop
starts       finished starts, and predictions for the next one
crashes      crashes, and which of them is in force
crash_record the record of a crash in `status.lastCrash`
knowledge    the catalog data, and rules for ended containers and Pods
"""
