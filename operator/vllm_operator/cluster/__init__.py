"""Every call to the Kubernetes API and to the model hub, behind small Protocols .

the client    client (the Protocol), kube (a real API server), answers, connection, deep_json, mirror (from memory)
reading       observe, selectors (by which labels), inventory, explanations, schema (which fields there are)
writing       apply, ownership (what is to be written), recent (what it remembers), events, records
one writer    lease, fence
the hub       hub
"""
