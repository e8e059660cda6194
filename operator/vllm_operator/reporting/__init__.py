"""From what is observed to status, conditions and events. Pure.

what there is     observation, scene, reading, knowledge
Pods              pods, pod_events, terminations, taints, rollout
starts            starts, progress, durations, estimates, lateness, patience, starting
crashes           crashes, remedies
caches            caches, cache_state, claims, places, quarantine
what is written   report, planned, conditions, summary, events; messages and wording say it
"""
