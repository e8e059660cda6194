"""Programs that run in Pods of engines. They use only the standard library, and are delivered as one file (`hack/build_tools.py`)."""
