"""Where things are inside the engine container.

Constants, on purpose: compiled artifacts are keyed by absolute paths and by the path of the model, so a
path that differs between two Pods is a cold start. What differs between two caches is the folder of the
volume that is mounted here, never the path.
"""

CACHE_ROOT = "/cache"
"""Everything that an engine compiles; also the home of its user."""
WEIGHTS_ROOT = "/weights"
"""Weights downloaded from the model hub."""
WEIGHTS_SUBPATH = "models"
"""Folder of the volume that is mounted at `WEIGHTS_ROOT`, or how its name starts. Cache keys start with a version."""
MODEL_ROOT = "/models"
"""Root of the claim of a `pvc://claim/path` model, mounted read-only: the model is `/models/path`."""
TOKEN_ROOT = "/etc/vllm-operator/hub"
"""Folder of the token for the model hub, from the user's Secret."""
TOKEN_FILE = "token"


def model_argument(uri: str) -> str:
    """Return the model as the engine takes it: a name on the hub, or the path where the claim is mounted."""
    scheme, _, rest = uri.partition("://")
    if scheme == "hf":
        return rest
    path = rest.partition("/")[2].strip("/")
    return f"{MODEL_ROOT}/{path}" if path else MODEL_ROOT
