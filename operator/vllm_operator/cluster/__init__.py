"""Every call to the Kubernetes API, behind one small Protocol that ships with a fake."""
