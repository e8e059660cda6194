"""Status, conditions and events: only formatting, no decisions. Pure.

report          all of it, in order
conditions      setting conditions; the status of an object that could not be observed
planned         Accepted, Planned, `status.pinnedPlan`
caches          CacheWarm, `status.cache`, the PVCs
artifacts       CachePublished, `status.cache.artifact`
savings         `status.cache.warmStarts`, `status.cache.savedSeconds`
progressing     Progressing; startup (`status.startup`), estimates (how long a start takes, and when it is late), scheduling (advice about
                Pods that the scheduler or an admission plugin refuses), fetching (weights that a Job downloads before)
crashed         Crashed
exposed         Exposed, `status.url`
scaled          Autoscaled, Protected
ready           Ready, Stalled, and which conditions have something to report; draining (Pods that finish their requests)
events          the difference to the previous status, as events
"""
