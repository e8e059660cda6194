"""Paths inside the engine container.

They are constants, because the keys of compiled artifacts contain absolute paths and the path of the model: a different path causes a cold
start. Caches differ in the mounted directory of the volume, never in the path.
"""

CACHE_ROOT = "/cache"
"""Compiled files of an engine; also the home directory of its user."""
HANGS_ROOT = f"{CACHE_ROOT}/hangs"
"""Evidence of the last hangs of an engine."""
STACKS_ROOT = "/tmp/vllm-operator-stacks"
"""Stacks that an engine writes when it makes no progress."""
PACKED_ROOT = "/packed"
"""Packed caches, in the containers that pack and push them."""
WEIGHTS_ROOT = "/weights"
"""Weights downloaded from the model hub."""
WEIGHTS_SUBPATH = "models"
"""Directory of the volume that is mounted at `WEIGHTS_ROOT`, or the prefix of its name. Cache keys start with a version."""
MODEL_ROOT = "/models"
"""Root of the PersistentVolumeClaim of a `pvc://name/path` model, mounted read-only: the model is `/models/path`."""
ADAPTER_CLAIM_ROOT = "/adapters"
"""Root of the PersistentVolumeClaims of `pvc://name/path` adapters, mounted read-only: the adapter is `/adapters/name/path`."""
ADAPTER_TOKEN_ROOT = "/etc/vllm-operator/adapters"
"""Directory with a subdirectory, by adapter name, for each adapter with a separate token."""
TOKEN_ROOT = "/etc/vllm-operator/hub"
"""Directory of the token for the model hub, from the user's Secret."""
TOKEN_FILE = "token"
ARTIFACT_SECRET_ROOT = "/etc/vllm-operator/artifact"
"""Directory of the credentials for the registry with caches, from the user's Secret."""


def model_argument(uri: str) -> str:
    """Return the engine's model argument: a name on the hub, a path in the mounted PersistentVolumeClaim, or an object store URI."""
    scheme, _, rest = uri.partition("://")
    if scheme == "hf":
        return rest
    if scheme != "pvc":
        return uri
    path = rest.partition("/")[2].strip("/")
    return f"{MODEL_ROOT}/{path}" if path else MODEL_ROOT
