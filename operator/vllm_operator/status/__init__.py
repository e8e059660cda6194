"""Status, conditions and events of a VLLMDeployment, and the reaction to crashes. Pure.

observation   the input: `Observation`, with parsed Pods (worst first), stalled starts, the rollout
knowledge     messages, and the catalog data about starts, crashes and terminated Pods
terminations  the cause of the end of a container or Pod
crashes       crashes, which of them is in force, and their record in `status.lastCrash`
starts        starts whose logs show their caches: durations, estimates, lateness, saved time
reaction      remedies, damaged caches, restarts of stalled starts, scale to zero
bad_nodes     nodes on which Pods crash for a reason that lies in the node
cache_damage  whether damaged caches cause a crash
rollback      whether to give up a revision, and which one runs instead
remedies      changes of flags and variables, `kubectl patch` commands, decisions in force
planned       `status.plan`, `status.engine`
caches        `status.cache`, CachePublished
claims        problems with the PVCs of caches and weights
startup       `status.startup`: the start in progress, and the download of weights
progressing   the progress of the rollout, with advice about Pods that are refused
ready         Ready, Available, Crashed, Hung, Stalled, ReadingImage, Isolated, Exposed, Autoscaled, Protected, `status.url`
events        the difference to the previous status, as events
report        the complete report, in order
"""
