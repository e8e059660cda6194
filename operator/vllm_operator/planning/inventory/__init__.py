"""What GPUs there are: Nodes and ResourceSlices in, pools of equal devices out."""
