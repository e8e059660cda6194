"""The GPUs of the cluster: Nodes and ResourceSlices in, pools of equal devices out."""
