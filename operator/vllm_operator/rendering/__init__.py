"""Render a plan as manifests. Pure.

manifests       all children in the order in which they are applied: PVCs, Service, ResourceClaimTemplate, Deployment
exposure        NetworkPolicy, HTTPRoute, InferencePool, PodDisruptionBudget, HorizontalPodAutoscaler, ScaledObject
pod             Pod template: container, volumes, `spec.podTemplate` merged over them (pod_template), and init containers
resource_claim  ResourceClaimTemplate for DRA
revision        name of a plan, and the ControllerRevision that contains it
"""
