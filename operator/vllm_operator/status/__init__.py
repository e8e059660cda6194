"""Status, conditions and events: only formatting, no decisions. Pure.

report          the complete report, in order
conditions      setting conditions; the status of an object that could not be observed
planned         Accepted, Planned, `status.pinnedPlan`
caches          CacheWarm, `status.cache`, the PVCs
artifacts       CachePublished, `status.cache.artifact`
savings         `status.cache.warmStarts`, `status.cache.savedSeconds`
progressing     Progressing; startup (`status.startup`), estimates (duration and lateness of a start), scheduling (advice about
                Pods that the scheduler or an admission plugin refuses), fetching (weights that a Job downloads first)
crashed         Crashed
exposed         Exposed, `status.url`
scaled          Autoscaled, Protected
ready           Ready, Stalled, and the choice of reported conditions; draining (Pods that finish their requests)
events          the difference to the previous status, as events
"""
