"""Render a plan as manifests. Pure.

manifests       PVCs (volumes), Service, ResourceClaimTemplate, Deployment
exposure        NetworkPolicy, HTTPRoute, InferencePool, PodDisruptionBudget, HorizontalPodAutoscaler, ScaledObject
pod             Pod template: container, volumes, `spec.podTemplate` merged over them, and init containers
resource_claim  ResourceClaimTemplate for DRA
image_reading   the Job that reads the build of vLLM in an image, and the ControllerRevision that keeps the result
revision        the ControllerRevision that contains a plan, and which one a Deployment was rendered from
"""
