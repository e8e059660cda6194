"""Programs that run in Pods of engines. They use the standard library only, and get there as one file (`hack/build_tools.py`)."""
