"""Status, conditions and events: only formatting, no decisions. Pure.

report          all of it, in order
conditions      setting conditions
planned         Accepted, Planned, `status.plan`
caches          CacheWarm, `status.cache`; volume_claims (the PVCs)
starting        Starting; startup (`status.startup`), estimates, lateness, taints (why no node takes a Pod)
summary         Crashed, Available, Ready
events          the difference to the previous status, as events
failures        the status of an object that could not be observed
"""
