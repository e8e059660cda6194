"""The GPUs of the cluster: from Nodes and ResourceSlices to pools of equal devices. Pure.

nodes (makes the inventory), node_labels and devices (what it reads), pools (the result, and the room in it for the Pods of a plan)
"""
