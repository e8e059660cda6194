"""A client of a container registry: the distribution API, version 2, with Basic and Bearer authentication, over TLS.

Credentials come from a mounted Secret of type kubernetes.io/dockerconfigjson. They are sent to the registry and its token server, never
after a redirect to another origin. A file `ca.crt` in the Secret adds a certificate authority.
"""

import base64
import http.client
import json
import os
import re
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any, TypeVar

from vllm_operator.tools import artifact
from vllm_operator.tools.artifact import ArtifactError
from vllm_operator.tools.build import FACTS_LABEL, differences

T = TypeVar("T")
SOCKET_SECONDS = 20
REQUEST_ATTEMPTS = 4
REPOSITORY = re.compile(r"([A-Za-z0-9.-]+(?::[0-9]+)?)/([a-z0-9]+(?:[._/-]+[a-z0-9]+)*)")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
ACCEPTED = {"Accept": f"{artifact.MANIFEST_TYPE}, {artifact.DOCKER_MANIFEST_TYPE}"}
DOCKER_HUB = {"docker.io": "registry-1.docker.io", "index.docker.io": "registry-1.docker.io"}


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects without credentials, and only with the scheme of the registry."""

    def __init__(self, scheme: str) -> None:
        self._scheme = scheme

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """Return the request to follow."""
        if urllib.parse.urlsplit(newurl).scheme != self._scheme:
            raise ArtifactError("Unreachable", "The registry redirects to an address without TLS.")
        followed = super().redirect_request(req, fp, code, msg, headers, newurl)
        if followed is not None:
            followed.remove_header("Authorization")
        return followed


class Registry:
    """A repository such as `registry.example/team/caches`. `secret`: the folder of the mounted Secret, which may be absent."""

    def __init__(self, repository: str, secret: str = "", scheme: str = "https", *, push: bool = False) -> None:
        found = REPOSITORY.fullmatch(repository)
        if found is None:
            raise ArtifactError("Invalid", f"{repository} is not of the form REGISTRY/REPOSITORY.")
        self.host, self.name = found[1], found[2]
        self.origin = f"{scheme}://{DOCKER_HUB.get(self.host, self.host)}"
        self.secret, self._push = secret, push
        self.account = read_account(secret, self.host, self.name)
        self.authorization = ""
        context, authority = ssl.create_default_context(), os.path.join(secret, "ca.crt")
        try:
            if secret and os.path.exists(authority):
                context.load_verify_locations(authority)
        except (OSError, ssl.SSLError) as error:
            raise ArtifactError("Invalid", f"ca.crt in the Secret is not a certificate: {error}") from None
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), Redirects(scheme))

    def manifest(self, reference: str) -> tuple[bytes, str]:
        """Return a manifest by tag or digest, and its digest."""
        with self._request("GET", f"/v2/{self.name}/manifests/{reference}", ACCEPTED) as answer:
            content = read_limited(answer, artifact.MAX_JSON)
        digest = artifact.sha256_of(content)
        if DIGEST.fullmatch(reference) and digest != reference:
            raise ArtifactError("Rejected", f"The registry returned {digest} instead of {reference}.")
        return content, digest

    def small_blob(self, digest: str, size: int) -> bytes:
        """Return a small blob after checking its digest."""
        if size > artifact.MAX_JSON:
            raise ArtifactError("Rejected", f"{digest} has {size} bytes.")
        with self.blob(digest) as answer:
            content = read_limited(answer, artifact.MAX_JSON)
        if len(content) != size or artifact.sha256_of(content) != digest:
            raise ArtifactError("Rejected", f"The registry returned something other than {digest}.")
        return content

    def blob(self, digest: str) -> http.client.HTTPResponse:
        """Open a blob. The content is not checked."""
        if not DIGEST.fullmatch(digest):
            raise ArtifactError("Rejected", f"{digest[:80]} is not a digest.")
        return self._request("GET", f"/v2/{self.name}/blobs/{digest}", {})

    def has(self, path: str) -> bool:
        """Return whether a blob (`blobs/DIGEST`) or manifest (`manifests/TAG`) exists."""
        answer = if_found(lambda: self._request("HEAD", f"/v2/{self.name}/{path}", ACCEPTED))
        if answer is not None:
            answer.close()
        return answer is not None

    def push_blob(self, digest: str, file: IO[bytes], size: int) -> None:
        """Upload a blob, unless it exists."""
        if self.has(f"blobs/{digest}"):
            return
        with self._request("POST", f"/v2/{self.name}/blobs/uploads/", {"Content-Length": "0"}) as answer:
            location = urllib.parse.urljoin(answer.geturl(), answer.headers.get("Location", ""))
        target = f"{location}{'&' if urllib.parse.urlsplit(location).query else '?'}digest={urllib.parse.quote(digest)}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        self._request("PUT", target, headers, file).close()

    def push_manifest(self, reference: str, content: bytes) -> None:
        """Upload a manifest."""
        self._request("PUT", f"/v2/{self.name}/manifests/{reference}", {"Content-Type": artifact.MANIFEST_TYPE}, content).close()

    def _request(
        self, method: str, target: str, headers: dict[str, str], data: bytes | IO[bytes] | None = None
    ) -> http.client.HTTPResponse:
        """Send a request. Authenticates after a 401, and retries if the registry is busy."""
        url, asked = urllib.parse.urljoin(self.origin, target), False
        is_registry = "{0.scheme}://{0.netloc}".format(urllib.parse.urlsplit(url)) == self.origin
        for attempt in range(REQUEST_ATTEMPTS):
            if data is not None and not isinstance(data, bytes):
                data.seek(0)
            request = urllib.request.Request(url, data=data, headers=headers, method=method)
            if self.authorization and is_registry:
                request.add_unredirected_header("Authorization", self.authorization)
            try:
                answer: http.client.HTTPResponse = self._opener.open(request, timeout=SOCKET_SECONDS)
                return answer
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 401 and is_registry and not asked:
                    asked = True
                    self.authorization = self._authorize(error.headers.get("WWW-Authenticate", ""))
                elif error.code in (429, 500, 502, 503, 504) and attempt < REQUEST_ATTEMPTS - 1:
                    time.sleep(retry_seconds(error.headers.get("Retry-After", ""), attempt))
                else:
                    raise self._failure(error.code, method) from None
            except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
                reason = getattr(error, "reason", error)
                is_untrusted = isinstance(reason, ssl.SSLCertVerificationError)
                if is_untrusted and self.secret and not self.account:
                    message = f"The Secret does not exist, and the certificate of {self.host} is not trusted."
                    raise ArtifactError("SecretMissing", message) from None
                if attempt == REQUEST_ATTEMPTS - 1 or is_untrusted or isinstance(reason, (ConnectionRefusedError, socket.gaierror)):
                    raise ArtifactError("Unreachable", f"{self.host} cannot be reached: {reason}") from None
                time.sleep(retry_seconds("", attempt))
        raise ArtifactError("Unreachable", f"{self.host} does not answer.")

    def _authorize(self, challenge: str) -> str:
        kind, _, rest = challenge.partition(" ")
        if kind.lower() == "basic" and self.account:
            return f"Basic {self.account}"
        if kind.lower() != "bearer":
            return ""
        values = {name.lower(): value for name, value in re.findall(r'([A-Za-z]+)="([^"]*)"', rest)}
        realm = values.get("realm", "")
        if urllib.parse.urlsplit(realm).scheme != urllib.parse.urlsplit(self.origin).scheme:
            raise ArtifactError("Unreachable", f"{self.host} names a token server without TLS.")
        query = {"service": values.get("service", ""), "scope": f"repository:{self.name}:pull{',push' if self._push else ''}"}
        request = urllib.request.Request(f"{realm}{'&' if '?' in realm else '?'}{urllib.parse.urlencode(query)}")
        if self.account:
            request.add_unredirected_header("Authorization", f"Basic {self.account}")
        try:
            with self._opener.open(request, timeout=SOCKET_SECONDS) as answer:
                found = json.loads(read_limited(answer, artifact.MAX_JSON))
            return f"Bearer {found.get('token') or found['access_token']}"
        except urllib.error.HTTPError as error:
            error.close()
            raise self._failure(error.code, "GET") from None
        except (OSError, ValueError, KeyError, AttributeError, http.client.HTTPException) as error:
            raise ArtifactError("Unreachable", f"The token server of {self.host} fails: {error}") from None

    def _failure(self, code: int, method: str) -> ArtifactError:
        if code in (401, 403) and self.secret and not self.account:
            return ArtifactError("SecretMissing", f"The Secret does not exist, or has no account for {self.host}.")
        if code in (401, 403):
            return ArtifactError("Denied", f"{self.host} refuses access to {self.name} (HTTP {code}).")
        if code == 404:
            return ArtifactError("NotFound", f"{self.host} has no such artifact in {self.name}.")
        if code == 405 or (code == 400 and method == "PUT"):
            return ArtifactError("Denied", f"{self.host} does not accept it (HTTP {code}).")
        return ArtifactError("Unreachable", f"{self.host} fails (HTTP {code}).")


def if_found(ask: Callable[[], T]) -> T | None:
    """Return the answer to a request; None if there is no such thing."""
    try:
        return ask()
    except ArtifactError as error:
        if error.reason == "NotFound":
            return None
        raise


@dataclass(frozen=True)
class Artifact:
    """The layer of an artifact, the digest of its archive, and the labels."""

    digest: str
    size: int
    plain_digest: str
    labels: dict[str, str]


def read_manifest(registry: Registry, content: bytes, base: str, here: dict[str, str] | None = None) -> Artifact:
    """Read the manifest of an artifact. Raises ArtifactError if it is not for this image and GPU; `here` identifies the differences."""
    try:
        manifest = json.loads(content)
        (layer,), configuration = manifest["layers"], manifest["config"]
        config = json.loads(registry.small_blob(configuration["digest"], int(configuration["size"])))
        labels = {str(name): str(value) for name, value in config["config"]["Labels"].items()}
        (plain_digest,) = config["rootfs"]["diff_ids"]
        found = Artifact(str(layer["digest"]), int(layer["size"]), str(plain_digest), labels)
        is_layer = layer["mediaType"] in artifact.LAYER_TYPES and 0 <= found.size <= artifact.MAX_BYTES
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ArtifactError("Rejected", "This is not the manifest of a cache artifact.") from None
    if not is_layer:
        raise ArtifactError("Rejected", "The layer is not that of a cache artifact.")
    if labels.get(f"{artifact.LABEL}format") != artifact.FORMAT:
        raise ArtifactError("Rejected", f"The artifact does not have the format {artifact.FORMAT} of this version of the operator.")
    if (made := labels.get(f"{artifact.LABEL}base", "")) != base:
        differs = differences(here, labels.get(FACTS_LABEL, "")) if here else ""
        raise ArtifactError("Mismatch", f"The artifact is for {made[:160]}, and this engine needs {base}.", differs=differs)
    return found


def read_account(secret: str, host: str, name: str) -> str:
    """Return `user:password` in base64 for a repository, from a mounted Secret; empty without one."""
    try:
        with open(os.path.join(secret, ".dockerconfigjson"), "rb") as file:
            accounts = json.load(file)["auths"].items()
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return ""
    found = {-1: ""}  # by the length of the path: the most specific wins
    for place, entry in accounts:
        server, _, path = re.sub(r"^https?://", "", str(place)).rstrip("/").partition("/")
        path = re.sub(r"^v[12]$", "", path)
        is_host = server == host or (server in DOCKER_HUB and host in DOCKER_HUB)
        if not is_host or not f"{name}/".startswith(f"{path}/" if path else "") or not isinstance(entry, dict):
            continue
        given = entry.get("auth")
        if not given and entry.get("username"):
            given = base64.b64encode(f"{entry['username']}:{entry.get('password', '')}".encode()).decode()
        if isinstance(given, str) and re.fullmatch(r"[A-Za-z0-9+/=_-]+", given):
            found.setdefault(len(path), given)
    return found[max(found)]


def read_limited(answer: Any, limit: int) -> bytes:
    """Read at most this many bytes of a response."""
    content = answer.read(limit + 1)
    if len(content) > limit:
        raise ArtifactError("Rejected", f"The registry sent more than {limit} bytes.")
    return bytes(content)


def retry_seconds(retry_after: str, attempt: int) -> float:
    """Return how long to wait before the next attempt."""
    return min(float(retry_after), 15.0) if re.fullmatch(r"[0-9]{1,4}", retry_after) else 0.5 * 2.0**attempt
