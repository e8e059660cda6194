"""Render a plan as manifests. Pure.

manifests       all children in the order in which they are applied: PVCs, Service, ResourceClaimTemplate, Deployment
exposure        NetworkPolicy, HTTPRoute, InferencePool, PodDisruptionBudget, HorizontalPodAutoscaler, ScaledObject
pod             Pod template: container, volumes, and the user's `spec.podTemplate` merged over it (pod_template)
artifact        init container that fetches caches from a registry
resource_claim  ResourceClaimTemplate for DRA
revision        name of a plan, and the ControllerRevision that contains it
"""
