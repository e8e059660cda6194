"""Reading Pods and their events. Pure, and never raises on input of another shape.

view   the state of a Pod, from its status and its events
owner  the VLLMDeployment that a Pod belongs to, and label selectors
tools  how Pods get the operator's programs
"""
