"""From what is asked for and what there is to a plan, every choice with its reason. Pure.

the steps       planner; spec_digest and pinning keep a plan, differences compares two, outcome is the answer
what there is   inventory (GPUs), model
the choices     engine, placement, pod_template (what a user may add), pod_fields (which fields there are)
"""
