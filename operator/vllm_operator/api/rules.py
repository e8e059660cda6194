"""CEL rules over several fields. The API server checks them before it stores an object.

A rule refuses only specs that can never work. The planner decides about specs that work in some clusters or versions, and reports problems
in a condition. Each message says what the user can do.
"""

from collections.abc import Iterator, Mapping

FLAG = "[A-Za-z].*"
"""Pattern of the name of a flag without its leading dashes."""

WORD = "^--?[A-Za-z][A-Za-z0-9_-]*"
"""Pattern of the flag in a word of a command line."""

DEFAULT_CACHE_SIZE = "20Gi"
"""Default size of the PersistentVolumeClaim of the caches."""


def _rule(expression: str, message: str, field: str = "") -> dict[str, str]:
    """Return a CEL rule with its message, and the path of the field to which the API server attributes it."""
    return {"rule": expression, "message": message, **({"fieldPath": field} if field else {})}


OWNED = {
    ("model", "model-tag"): "use model.uri",
    ("served-model-name",): "use model.servedName and model.aliases",
    ("revision",): "use model.revision",
    ("host", "port", "uds"): "use service.port; the engine itself always listens on port 8000 of its Pod",
    ("tensor-parallel-size", "tp"): "use parallelism.tensor, which also requests the GPUs",
    ("pipeline-parallel-size", "pp"): "use parallelism.pipeline, which also requests the GPUs",
    ("data-parallel-size", "dp"): "use parallelism.data, which also requests the GPUs",
    ("enable-expert-parallel", "no-enable-expert-parallel", "ep"): "use parallelism.expert",
}
"""Flags for which the spec has a field, with what to use instead."""
OWNED_FLAGS: Mapping[str, str] = {f"--{name}": instead for names, instead in OWNED.items() for name in names}
"""The same by flag. The rules do not see abbreviations of them."""


def _owned(where: str, entry: str, flag: str, dashes: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yield the rules that refuse these flags in a list. `flag` is CEL for the flag in an `entry`, whose name may follow `dashes`."""
    for names, instead in OWNED.items():
        listed = ", ".join(f"'{each}{name}'" for name in names for each in dashes)
        flags = " and ".join(f"--{name}" if len(name) > 2 else f"-{name}" for name in names)
        expression = f"self.all({entry}, !({flag}.replace('_', '-') in [{listed}]))"
        yield _rule(expression, f"{flags} {'is' if len(names) == 1 else 'are'} not allowed in {where}; {instead}")


NAME = _rule(
    "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,50}[a-z0-9])?$')",
    "the name is also the name of a Service; use at most 52 lower-case letters, digits and dashes, starting with a letter "
    "and not ending with a dash",
)

ARGUMENTS = (
    _rule(
        f"self.all(a, self.exists_one(b, b.name.find('{FLAG}').replace('_', '-') == a.name.find('{FLAG}').replace('_', '-')))",
        "a flag is given twice (dashes and underscores do not matter); keep one of them",
    ),
    *_owned("args", "a", f"a.name.find('{FLAG}')", ("",)),
)

EXTRA_ARGUMENTS = (
    _rule(f"self.size() == 0 || self[0].matches('{WORD}')", "the first word must be a flag, such as --seed; the model is in model.uri"),
    # Full names only: the cost of a comparison of all pairs of words is limited.
    _rule("self.all(a, !a.startsWith('--') || self.exists_one(b, b == a))", "a flag is given twice; keep one of them"),
    *_owned("extraArgs", "w", f"w.find('{WORD}')", ("--", "-")),
)

ARGUMENTS_APART = _rule(
    "!has(self.args) || !has(self.extraArgs) || self.args.all(a, !self.extraArgs.exists(w, "
    f"w == '--' + a.name.find('{FLAG}').replace('_', '-') || w.startsWith('--' + a.name.find('{FLAG}').replace('_', '-') + '=')))",
    "a flag is given in args and in extraArgs; keep one of them",
    ".extraArgs",
)

VALUE_OR_VALUES = _rule("!(has(self.value) && has(self.values))", "give either value or values (for a flag with several), not both")

VALUE_OR_SOURCE = _rule("!(has(self.value) && has(self.valueFrom))", "give either value or valueFrom, not both")

REVISION_ON_HUB = _rule(
    "!has(self.revision) || self.uri.startsWith('hf://')",
    "only what is on the hub (hf://) has a revision; on a PersistentVolumeClaim, name the directory in uri: pvc://claim/path",
    ".revision",
)

MIG = (
    _rule(
        "has(self.mode) || has(self.profile) || has(self.uuids)",
        "give mode, profile or uuids; without mig, the operator compares MIG slices and whole GPUs",
    ),
    _rule(
        "!has(self.mode) || self.mode != 'Disabled' || !(has(self.profile) || has(self.uuids))",
        "profile and uuids select MIG slices; remove them, or set mode to Enabled",
        ".mode",
    ),
)

ACCELERATOR = (
    _rule(
        "!has(self.mig) || !has(self.mig.uuids) || (has(self.allocation) && self.allocation == 'DRA')",
        "a MIG device can be pinned by UUID only with allocation: DRA; "
        "with the device plugin, the kubelet picks the device: use mig.profile",
        ".mig.uuids",
    ),
    _rule(
        "!has(self.uuids) || (has(self.allocation) && self.allocation == 'DRA')",
        "a GPU can be pinned by UUID only with allocation: DRA; with the device plugin, the kubelet picks the GPU: "
        "use podTemplate.spec.nodeSelector to select the node",
        ".uuids",
    ),
    _rule(
        "!(has(self.uuids) && has(self.mig))",
        "give uuids (whole GPUs) or mig (slices), not both; MIG devices are pinned in mig.uuids",
        ".uuids",
    ),
)

STORAGE = (
    _rule(
        "!(has(self.claimName) && has(self.volume))",
        "give claimName (an existing PersistentVolumeClaim) or volume (one that the operator creates), not both",
    ),
    _rule(
        "!has(self.claimName) || !has(self.hostPath) && (!has(self.storage) || self.storage == 'SharedClaim')",
        "all replicas share an existing PersistentVolumeClaim; remove storage and hostPath, or claimName",
        ".claimName",
    ),
    _rule(
        "!has(self.volume) || !has(self.hostPath) && (!has(self.storage) || self.storage in ['SharedClaim', 'ClaimPerReplica'])",
        "volume describes a PersistentVolumeClaim; remove it for a directory of the node (HostPath) or of the Pod (EmptyDir)",
        ".volume",
    ),
    _rule(
        "!has(self.hostPath) || !has(self.storage) || self.storage == 'HostPath'",
        "hostPath needs storage HostPath; remove hostPath, or set storage to HostPath",
        ".hostPath",
    ),
)

PREFETCH_TO_CLAIM = _rule(
    "!has(self.prefetch) || self.prefetch == 'Never' || !has(self.hostPath) && (!has(self.storage) || self.storage == 'SharedClaim')",
    "prefetch needs one PersistentVolumeClaim for all replicas; remove prefetch, or storage and hostPath",
    ".prefetch",
)

ARTIFACT = (
    _rule(
        "has(self.repository) || has(self.reference)", "give repository (the tag is chosen), reference (one artifact by digest), or both"
    ),
    _rule(
        "!has(self.publish) || self.publish == 'Never' || has(self.repository)",
        "publish needs a repository to push to; a reference is only fetched",
        ".publish",
    ),
)

ROLLOUT = (
    _rule(
        "!(has(self.maxSurge) || has(self.maxUnavailable)) || !has(self.strategy) || self.strategy != 'Recreate'",
        "maxSurge and maxUnavailable need strategy RollingUpdate; remove them, or set strategy to RollingUpdate",
    ),
    _rule(
        "!has(self.maxSurge) || !has(self.maxUnavailable) || self.maxSurge + self.maxUnavailable > 0",
        "maxSurge and maxUnavailable cannot both be 0, because no Pod could be replaced; "
        "without a spare GPU, use maxSurge 0 and maxUnavailable 1",
    ),
)

AUTOSCALING = (
    _rule(
        "!has(self.minReplicas) || self.minReplicas <= self.maxReplicas",
        "minReplicas cannot be more than maxReplicas; lower minReplicas or raise maxReplicas",
        ".minReplicas",
    ),
    _rule(
        "!has(self.minReplicas) || self.minReplicas > 0 || (has(self.keda) && has(self.keda.activationQuery))",
        "minReplicas 0 needs keda.activationQuery, because engines that do not run have no metrics; add it, or set minReplicas to 1",
        ".minReplicas",
    ),
    _rule(
        "!has(self.metric) || self.metric != 'KVCacheUsage' || !has(self.target) || self.target <= 100",
        "the target of KVCacheUsage is a percentage; use at most 100",
        ".target",
    ),
)

OWN_ANNOTATIONS = _rule(
    "self.all(name, !name.startsWith('vllm-operator.dev/'))",
    "annotations with the prefix vllm-operator.dev/ are the operator's; use another prefix",
)

SERVICE = (
    _rule(
        "!has(self.loadBalancerClass) || (has(self.type) && self.type == 'LoadBalancer')",
        "loadBalancerClass needs type LoadBalancer",
        ".loadBalancerClass",
    ),
    _rule(
        "!has(self.type) || self.type != 'LoadBalancer' || !has(oldSelf.type) || oldSelf.type != 'LoadBalancer' || "
        "(has(self.loadBalancerClass) ? self.loadBalancerClass : '') == (has(oldSelf.loadBalancerClass) ? oldSelf.loadBalancerClass : '')",
        "the class of a load balancer cannot change; set type to ClusterIP first, then to LoadBalancer with the new class",
        ".loadBalancerClass",
    ),
)

STALL_WITHIN_DEADLINE = _rule(
    "!has(self.stallTimeoutSeconds) || !has(self.deadlineSeconds) || self.stallTimeoutSeconds <= self.deadlineSeconds",
    "stallTimeoutSeconds cannot be more than deadlineSeconds; raise deadlineSeconds or lower stallTimeoutSeconds",
)


def is_for_several(of: str) -> str:
    """Return a CEL expression: more than one Pod can mount the volume, or each Pod has its own."""
    return (
        f"(self.?{of}.?storage.orValue('SharedClaim') == 'ClaimPerReplica' || "
        f"self.?{of}.?volume.?accessMode.orValue('ReadWriteOnce') != 'ReadWriteOncePod')"
    )


def one_pod_claim(of: str) -> dict[str, str]:
    """Return a rule that refuses several replicas on a PersistentVolumeClaim for one Pod."""
    return _rule(
        f"self.?replicas.orValue(1) <= 1 || {is_for_several(of)}",
        "only one replica can use a PersistentVolumeClaim with access mode ReadWriteOncePod; use ReadWriteMany (replicas on "
        "several nodes), ReadWriteOnce (all on one node), storage ClaimPerReplica (a PersistentVolumeClaim for each), or replicas 1",
        f".{of}",
    )


def elsewhere(of: str) -> str:
    """Return a CEL expression: the caches are not on a shared PersistentVolumeClaim that the operator creates."""
    claims = f"(!has({of}.cache.storage) || {of}.cache.storage == 'SharedClaim')"
    return f"has({of}.cache) && (has({of}.cache.claimName) || has({of}.cache.hostPath) || !{claims})"


OWN_CLAIMS = f"{elsewhere('self')} || {elsewhere('oldSelf')}"
"""CEL: before or after the change, the operator creates no PersistentVolumeClaim, so no fields are compared."""


def volume_field(of: str, field: str, default: str) -> str:
    """Return CEL for a field of the PersistentVolumeClaim that the operator creates. `has` lets the API server estimate the cost."""
    volume = f"{of}.cache.volume"
    return f"(has({of}.cache) && has({volume}) && has({volume}.{field}) ? {volume}.{field} : '{default}')"


SPEC = (
    _rule(
        "!has(self.accelerator) || !has(self.accelerator.count) || self.accelerator.count >= "
        "self.?parallelism.?tensor.orValue(1) * self.?parallelism.?pipeline.orValue(1) * self.?parallelism.?data.orValue(1)",
        "accelerator.count is less than parallelism.tensor times pipeline times data; "
        "remove count, so that the product is used, or lower the parallelism",
        ".accelerator.count",
    ),
    _rule(
        "!has(self.accelerator) || !has(self.accelerator.mig) || self.accelerator.mig.?mode.orValue('Enabled') == 'Disabled' || "
        "self.?parallelism.?tensor.orValue(1) * self.?parallelism.?pipeline.orValue(1) == 1",
        "tensor and pipeline parallelism do not work with MIG slices, which cannot access each other's memory; "
        "use parallelism.tensor 1 and pipeline 1 with more replicas, a larger slice, or whole GPUs",
        ".accelerator.mig",
    ),
    _rule(
        "!has(self.accelerator) || !has(self.accelerator.mig) || !has(self.accelerator.mig.uuids) || "
        "self.accelerator.mig.uuids.size() >= self.?replicas.orValue(1) * "
        "self.?accelerator.?count.orValue(self.?parallelism.?data.orValue(1))",
        "there are fewer UUIDs in accelerator.mig.uuids than the replicas need; add UUIDs, or lower replicas",
        ".accelerator.mig.uuids",
    ),
    _rule(
        "!has(self.accelerator) || !has(self.accelerator.uuids) || "
        "self.accelerator.uuids.size() >= self.?replicas.orValue(1) * self.?accelerator.?count.orValue("
        "self.?parallelism.?tensor.orValue(1) * self.?parallelism.?pipeline.orValue(1) * self.?parallelism.?data.orValue(1))",
        "there are fewer UUIDs in accelerator.uuids than the replicas need; add UUIDs, or lower replicas or the parallelism",
        ".accelerator.uuids",
    ),
    _rule(
        "self.?parallelism.?expert.orValue('Disabled') == 'Disabled' || self.?model.?facts.?experts.orValue(1) > 0",
        "expert parallelism needs a model with experts, and model.facts.experts is 0; "
        "remove parallelism.expert, or correct model.facts.experts",
        ".parallelism.expert",
    ),
    one_pod_claim("cache"),
    one_pod_claim("weights"),
    _rule(
        f"self.?rollout.?maxSurge.orValue(0) == 0 || {is_for_several('cache')} && {is_for_several('weights')}",
        "with maxSurge, the new Pod of a rollout would wait for a PersistentVolumeClaim with access mode ReadWriteOncePod that the "
        "old Pod uses; remove maxSurge, or use ReadWriteOnce or ReadWriteMany",
        ".rollout.maxSurge",
    ),
    _rule(
        "self.?weights.?prefetch.orValue('Never') == 'Never' || has(self.weights.claimName) || (has(self.weights.volume) ? "
        "self.?weights.?volume.?accessMode.orValue('ReadWriteOnce') : self.?cache.?volume.?accessMode.orValue('ReadWriteOnce')) "
        "!= 'ReadWriteOncePod'",
        "a Job cannot fetch to a PersistentVolumeClaim with access mode ReadWriteOncePod beside a replica; use ReadWriteOnce or "
        "ReadWriteMany for weights.volume, or remove weights.prefetch",
        ".weights.prefetch",
    ),
    _rule(
        "self.?weights.?prefetch.orValue('Never') == 'Never' || self.model.uri.startsWith('hf://')",
        "only a model on the hub (hf://) can be fetched before the start; remove weights.prefetch",
        ".weights.prefetch",
    ),
    _rule(
        f"{OWN_CLAIMS} || quantity({volume_field('self', 'size', DEFAULT_CACHE_SIZE)})"
        f".compareTo(quantity({volume_field('oldSelf', 'size', DEFAULT_CACHE_SIZE)})) >= 0",
        f"a PersistentVolumeClaim can grow but not shrink (default size {DEFAULT_CACHE_SIZE}); keep the size, "
        "or create a smaller one and name it in cache.claimName",
        ".cache",
    ),
    _rule(
        f"{OWN_CLAIMS} || {volume_field('self', 'accessMode', 'ReadWriteOnce')} == "
        f"{volume_field('oldSelf', 'accessMode', 'ReadWriteOnce')}",
        "the access mode of a PersistentVolumeClaim cannot change; create one with the new mode and name it in cache.claimName, "
        "or delete this VLLMDeployment with its PersistentVolumeClaim and create it again",
        ".cache",
    ),
    _rule(
        f"{OWN_CLAIMS} || {volume_field('oldSelf', 'storageClassName', '')} == '' || "
        f"{volume_field('self', 'storageClassName', '')} == {volume_field('oldSelf', 'storageClassName', '')}",
        "the storage class of a PersistentVolumeClaim cannot change; create one with the new class and name it in cache.claimName, "
        "or delete this VLLMDeployment with its PersistentVolumeClaim and create it again",
        ".cache",
    ),
)
"""Rules of the spec as a whole. The last three compare it with the stored object."""
