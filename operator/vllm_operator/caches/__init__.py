"""Decisions about the contents of the cache volume. Pure: values in, values out.

No state is kept in memory. State that must outlive the operator and the VLLMDeployment is stored in annotations on the PVC.

where           key (the cache key), volumes (which volumes, and what may change of a PVC), address (where a Pod mounts them)
what is known   context (what decisions are made from), records (annotations on the PVC), directories (which directory to use)
what to do      actions (everything), priming (who fills an empty cache), rollouts (what a primer does before one), cleaning (deleting
                unused caches; the program is in tools), deletion (attempts to delete a quarantined directory), claim_holders
                (Pods that keep a PVC which is being deleted), sharing (PVCs of other VLLMDeployments),
                prefetching (the Job that downloads weights before a start; the program is in tools)
in a registry   artifacts (fetching, and what Pods report of it), publishing (the Job that pushes; the programs are in tools)
what to report  activity
"""
