"""Decisions about the cache volume, and about when a rollout may begin. Pure: values in, values out.

No state is kept in memory. State that must outlive the operator and the VLLMDeployment is stored in annotations on the PVC.

location        key (the cache key), claims (PVCs of caches and weights, and who uses them), address (where a Pod mounts them)
facts           context (input and result of decisions), directories (records on the PVC, and the directory that follows from them)
actions         actions (everything), priming (who fills an empty cache), cleaning (deleting unused caches), artifacts (fetching from and
                publishing to a registry), prefetching (the Job that downloads weights before a start), jobs (the common form of Jobs, whose
                programs are in tools)
rollouts        rollout (whether one waits for devices, or for the node of a volume), gate (measures a new plan before its rollout),
                measurement (figures of engines, and which plan is worse), race (which backends are the fastest)
"""
