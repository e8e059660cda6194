"""What is the case: an observation, read once, with the state of its Pods, starts and crashes. Pure.

observation   the inputs: objects, plan, logs, events
state         `ObservedState`: the Pods as read, worst first
rollout       what the Deployment says: replicas, paused, refused Pods
starts        starts that are over, and what they teach about the next one
stalls        whether a start still makes progress
crashes       crashes, and which of them still matters
terminations  what the status of a Pod alone says about its end
knowledge     the catalog data that all of this needs
"""
