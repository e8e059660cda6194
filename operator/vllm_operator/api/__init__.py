"""The VLLMDeployment API. Imports nothing else of the operator.

spec     spec, operation (its parts about operation), rules (CEL rules over several fields), crd (the schemas), base (of all models)
status   status, conditions (types and reasons), events, plan
objects  resource (the object, and the names of its children), workload (what its replicas run in), labels (names in objects), reading
         (values of unknown shape), digests
"""
