"""Decisions about the contents of the cache volume. Pure: values in, values out.

No state is kept in memory. State that must outlive the operator and the VLLMDeployment is stored in annotations on the PVC.

location        key (the cache key), volumes (which volumes, and allowed changes of a PVC), address (where a Pod mounts them)
facts           context (input of decisions), records (annotations on the PVC), directories (which directory to use)
actions         actions (everything), priming (who fills an empty cache), rollouts (priming before a rollout), cleaning (deleting
                unused caches; the program is in tools), deletion (attempts to delete a quarantined directory), claim_holders
                (Pods that keep a PVC which is being deleted), sharing (PVCs of other VLLMDeployments),
                prefetching (the Job that downloads weights before a start; the program is in tools)
registry        artifacts (fetching, and reports of Pods about it), publishing (the Job that pushes; the programs are in tools)
report          activity
"""
