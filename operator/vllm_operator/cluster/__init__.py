"""Every call to the Kubernetes API, behind small Protocols, each shipped with a fake."""
