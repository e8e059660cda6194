"""Status, conditions and events: only formatting, no decisions. Pure.

report          all of it, in order
conditions      setting conditions
planned         Accepted, Planned, `status.plan`
caches          CacheWarm, `status.cache`; volume_claims (the PVCs)
starting        Starting; startup (`status.startup`), estimates, lateness, taints (of nodes that a Pod does
                not tolerate), advice (what to do about a refusal of the scheduler or of admission)
summary         Crashed, Available, Ready
events          the difference to the previous status, as events
failures        the status of an object that could not be observed
"""
