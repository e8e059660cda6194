"""Reading Pods and their events. Pure, and never raises on input of another shape.

view   the VLLMDeployment that a Pod belongs to, its state from its status and its events, and label selectors
tools  how Pods get the operator's programs
"""
