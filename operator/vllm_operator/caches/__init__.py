"""Everything about what lies on the volume of the caches. Pure: values in, values out.

Nothing is remembered here. What must outlive the operator and the VLLMDeployment is an annotation on the PVC.

where             key (the cache key), volumes (which volume holds caches and weights), address (where a Pod mounts them)
what is known     context (all that decisions are made from), records (annotations on the PVC), directories (which one to use)
what to do        actions (all of it), priming and primer (who fills an empty cache), cleaning and cleaning_job (deleting unused
                  caches; the program is in scripts), remounting (a volume that became read-only), volume_changes (resizing)
what to report    activity
"""
