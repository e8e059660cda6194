"""The Kubernetes API and the model hub: the only package that sends requests.

interface   client (Protocol, kinds, selectors, errors)
transport   kube (a real API server), connection (how to connect), responses (parsing), object_cache (reads from memory)
reading     observe (one VLLMDeployment), inventory (GPUs), schema (fields of a Pod), events
writing     apply (children), managed_fields (whether they are up to date), ownership (whose an object is), events,
            lease (leader election)
hub         hub
helpers     recent (bounded memory), sockets (a workaround for uvloop)
"""
