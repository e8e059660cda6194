"""The operator's interface to the Kubernetes API: a Protocol, kinds, selectors and errors.

Manifests are plain dictionaries. Typed models would drop fields that they do not know, and writing them back would delete these fields.

Every failure is a `ClusterError`. The reconciler decides by its class alone.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, Unpack

from vllm_operator.api import labels
from vllm_operator.api.labels import is_name, is_namespace

Manifest = dict[str, Any]
"""A Kubernetes object, or a part of one, as JSON."""
Key = tuple[str, str]
"""Namespace and name of an object. In the work queue, of a VLLMDeployment."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of objects and its path on the API server. `api_version` is `v1` or `group/version`."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """The version within the API group."""
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL path of the collection, of one object, or of one of its subresources. Raises InvalidName if no object can have this name.

        Every path is built here, so that a name from a spec, an annotation or an owner reference cannot address another object, the
        collection (an empty name would), or the query.
        """
        parts = ["apis" if self.group else "api", self.api_version]
        if self.namespaced and (namespace is not None or name is not None):
            if not is_namespace(namespace):
                raise InvalidName("Namespace", namespace)
            parts += ["namespaces", str(namespace)]
        parts.append(self.plural)
        if name is not None:
            if not is_name(name):
                raise InvalidName(self.kind, name)
            parts.append(name)
        return "/" + "/".join([*parts, subresource] if subresource else parts)


VLLM_DEPLOYMENT = Kind(labels.API_VERSION, labels.KIND, labels.PLURAL)
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
LEADER_WORKER_SET = Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets")
REVISION = Kind("apps/v1", "ControllerRevision", "controllerrevisions")
SERVICE = Kind("v1", "Service", "services")
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
POD = Kind("v1", "Pod", "pods")
EVENT = Kind("v1", "Event", "events")
NODE = Kind("v1", "Node", "nodes", namespaced=False)
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SECRET = Kind("v1", "Secret", "secrets")
JOB = Kind("batch/v1", "Job", "jobs")
AUTOSCALER = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
SCALED_OBJECT = Kind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects")
DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
HTTP_ROUTE = Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes")
INFERENCE_POOL = Kind("inference.networking.k8s.io/v1", "InferencePool", "inferencepools")
CLAIM_TEMPLATE = Kind("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates")
RESOURCE_CLAIM = Kind("resource.k8s.io/v1", "ResourceClaim", "resourceclaims")
RESOURCE_SLICE = Kind("resource.k8s.io/v1", "ResourceSlice", "resourceslices", namespaced=False)
NODE_POOL = Kind("karpenter.sh/v1", "NodePool", "nodepools", namespaced=False)
PRESET = Kind(labels.API_VERSION, "VLLMPreset", "vllmpresets")
CLUSTER_PRESET = Kind(labels.API_VERSION, "ClusterVLLMPreset", "clustervllmpresets", namespaced=False)
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
DEFINITION = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
STORAGE_CLASS = Kind("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False)
VOLUME = Kind("v1", "PersistentVolume", "persistentvolumes", namespaced=False)
ACCESS_REVIEW = Kind("authorization.k8s.io/v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False)
SUBJECT_REVIEW = Kind("authorization.k8s.io/v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False)

KINDS = tuple(value for value in vars().values() if isinstance(value, Kind))  # all above


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    """Return the kind of a manifest. Raises LookupError if the operator does not know this kind."""
    for kind in KINDS:
        if (kind.api_version, kind.kind) == (manifest.get("apiVersion"), manifest.get("kind")):
            return kind
    raise LookupError(f"{manifest.get('apiVersion')} {manifest.get('kind')} is not a kind that the operator uses")


def watched_labels(kind: Kind) -> dict[str, str]:
    """Return the labels that select the listed and watched objects of a kind; empty for all objects.

    Pods are selected by a label of their Deployment's selector, which neither `spec.podTemplate` nor tools can remove. Other Pods may have
    it too: `vllm_operator.pods.view` determines the owner of a Pod.
    """
    if kind in (VLLM_DEPLOYMENT, PRESET, CLUSTER_PRESET):
        return {}
    return {labels.NAME_LABEL: labels.NAME} if kind == POD else {labels.MANAGED_BY_LABEL: labels.MANAGED_BY}


def children_of(kind: Kind, name: str) -> dict[str, str]:
    """Return the labels that select the children of this kind of one VLLMDeployment."""
    return watched_labels(kind) | {labels.INSTANCE_LABEL: name}


# ruff: noqa: N818 - named like the API server's reasons
class ClusterError(Exception):
    """A request to the API server failed. `str()` is the message of the API server if there is one."""


class NotFound(ClusterError):
    """404: there is no such object, or the API server does not serve this kind."""


class InvalidName(NotFound):
    """No object can have this name, so there is none. Nothing was sent."""

    def __init__(self, kind: str, name: object) -> None:
        super().__init__(f"{repr(name)[:120]} cannot be the name of a {kind}")


class Conflict(ClusterError):
    """409: the object has changed since it was read, exists already, or another manager owns a field."""


class Forbidden(ClusterError):
    """403: the account of the operator lacks a permission."""

    def __init__(self, message: str, *, verb: str = "", resource: str = "") -> None:
        super().__init__(message)
        self.verb = verb
        self.resource = resource


class Invalid(ClusterError):
    """400, 422: the API server refused the object, and a retry does not help. `causes` are pairs of a field and a message."""

    def __init__(self, message: str, *, causes: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message)
        self.causes = causes


class Unavailable(ClusterError):
    """No connection, timeout, 410, 429, 5xx: a retry may help. `retry_after` is in seconds; None if the API server does not say."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unauthorized(Unavailable):
    """401: the API server does not accept the credentials, even after they were read again. They may be renewed, so a retry may help."""


class NotLeading(Unavailable):
    """This process does not hold the Lease, so nothing was sent."""


@dataclass(frozen=True, slots=True)
class LogRequest:
    """The log to read. `since` is an RFC 3339 time, which the API server truncates to seconds. `tail_lines` limits it to its last lines."""

    namespace: str
    pod: str
    container: str
    follow: bool = True
    previous: bool = False
    since: str | None = None
    limit_bytes: int | None = None
    tail_lines: int | None = None


class Query(TypedDict, total=False):
    """Which objects a list has: `labels` and `fields` with these values.

    `cached` accepts a result from the watch cache, which may be a moment old, costs less, and has one page.
    """

    labels: Mapping[str, str]
    fields: Mapping[str, str]
    cached: bool


class ClusterClient(Protocol):
    """Requests to the API server. All raise `ClusterError`. All except `stream_log` end after the timeout of the client."""

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Manifest:
        """Read one object. Raises NotFound."""

    async def get_path(self, path: str) -> Manifest:
        """Read a JSON document that is not an object, for example `/version`."""

    async def find(self, kind: Kind, namespace: str | None = None, **query: Unpack[Query]) -> Sequence[Manifest]:
        """List objects."""

    def pages(self, kind: Kind, namespace: str | None = None, **query: Unpack[Query]) -> AsyncIterator[Sequence[Manifest]]:
        """List objects page by page, as of one resourceVersion. A page is valid until the next one is requested.

        Raises Unavailable also if the resourceVersion of the list has expired. Then list again.
        """

    async def apply(self, manifest: Manifest, *, manager: str, force: bool = True) -> Manifest:
        """Server-side apply. Raises Conflict without `force` if another manager owns a field with another value."""

    async def apply_status(self, manifest: Manifest, *, manager: str) -> Manifest:
        """Apply the status of an object. Raises NotFound if the object is gone."""

    async def patch(self, kind: Kind, name: str, namespace: str | None, operations: Sequence[Manifest], *, manager: str) -> Manifest:
        """Apply a JSON patch (RFC 6902). Raises Conflict if a `test` operation fails."""

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object. Raises Conflict if it exists."""

    async def delete(self, kind: Kind, name: str, namespace: str | None = None, *, uid: str | None = None) -> None:
        """Delete an object if it still has this uid. A missing object is not an error."""

    def stream_log(self, request: LogRequest) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a log with timestamps; iterate over its bytes in chunks of at most 64 KiB.

        With `follow`, this waits for the first line without a timeout, because a kubelet does not respond earlier. The end of the stream
        does not mean that the container has ended: it also ends when the kubelet restarts.
        """


async def read_log(client: ClusterClient, request: LogRequest, limit: int) -> bytes:
    """Return at most `limit` bytes of a log. Raises ClusterError."""
    content = b""
    async with client.stream_log(request) as chunks:
        async for chunk in chunks:
            content += chunk
            if len(content) >= limit:
                break
    return content[:limit]
