"""Objects of any shape that use the field names of Pods, claims, Deployments and events."""

from hypothesis import strategies as st

FIELDS = """
metadata spec status name uid nodeName conditions containerStatuses initContainerStatuses state lastState waiting terminated
running reason message exitCode restartCount startedAt finishedAt type phase ready started lastTransitionTime
creationTimestamp deletionTimestamp image signal annotations accessModes storageClassName involvedObject kind lastTimestamp
series lastObservedTime selector matchLabels replicas updatedReplicas observedGeneration generation ports port
"""
VALUES = "vllm Ready PodScheduled True False Failed Pending 2026-11-21T14:10:00.5Z 9999-12-31T23:59:59-14:00"
KEYS = st.sampled_from(FIELDS.split())
WORDS = st.sampled_from(VALUES.split())
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), WORDS)
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=6)), max_leaves=25
)

OBJECTS = st.dictionaries(KEYS, ANYTHING, max_size=4)
