"""From a plan to manifests: plain dictionaries as the API server takes them. Pure.

manifests       all of them, in the order in which they are applied
deployment      pod, container, volumes, pod_template (merging `spec.podTemplate`)
the others      claim (PVCs), service, resource_claim (ResourceClaimTemplate for DRA)
"""
