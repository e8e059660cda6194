"""The GPUs of the cluster: from Nodes and ResourceSlices to pools of equal devices."""
