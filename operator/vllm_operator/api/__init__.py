"""The VLLMDeployment API. Imports nothing else of the operator.

spec     spec, operation (its parts about operation), crd (the schemas, and rules over several fields), base (of all models)
status   status, conditions (types and reasons, events), plan
objects  resource (the object, its children, what its replicas run in), labels (names in objects), reading (values of unknown shape)
"""
