"""Reading Kubernetes objects that others wrote: Pods, their events, quantities. Pure, and never raises.

owner       which VLLMDeployment a Pod belongs to
view        one `PodView` per Pod: phase, reason, how the last run ended
events      what Kubernetes events add to the status of a Pod or PVC
reading     fields of dictionaries of unknown shape
quantities  Kubernetes quantities
"""
