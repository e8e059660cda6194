"""The Kubernetes API, without knowledge of the domain.

interface   client (Protocol, kinds, selectors, errors)
transport   api_client (requests, the fence of the leader), connection (how to connect)
writing     managed_fields (whether a child is up to date)
reading     events (and writing them)
helpers     recent (bounded memory)
"""
