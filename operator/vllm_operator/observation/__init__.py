"""What was observed: Pods, starts and crashes of one VLLMDeployment. Pure.

observation  the input, `ObservedState` (its Pods as read, worst first), and whether a start is stalled
rollout      what the Deployment says: replicas, paused, refused Pods
draining     Pods that finish their requests before they stop
starts       finished starts, and what they say about the next one
crashes      crashes, and which of them is in force
crash_record what `status.lastCrash` keeps of a crash
knowledge    the catalog data for all this, and how containers and Pods end according to their status
"""
