"""From what is asked for and what there is to a plan, every choice with its reason. Pure.

the steps       planner; standing and pinning keep a plan, differences and summary say it, outcome is the answer
what there is   inventory (GPUs), model, foreign (how what others wrote is read), quantities
the choices     engine, placement, storage, pod_template (what a user may add), pod_fields (which fields there are)
afterwards      remediation (what to do about a crash)
"""
