"""Taking care of the caches: what to do about an empty, a shared, a damaged or a full one.

Pure, as the other rooms: from what is observed to what the operator should do. Nothing is remembered here. What must
outlive the operator and the VLLMDeployment is an annotation on the claim that holds the caches.
"""
