"""The commands of the docs: every line that starts with `$` in a block for the console."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    ROOT / name
    for name in ("README.md", "CONTRIBUTING.md", "examples/README.md", "charts/vllm-operator/README.md", "hack/testenv/README.md")
]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PROGRAMS = (
    "kubectl",
    "helm",
    "make",
    "vllm-operator",
    "python",
    "pip",
    "kind",
    "docker",
    "curl",
    "trivy",
    "cosign",
    "sed",
    "git",
    "pipx",
    ".ci/run",
    ".venv/bin/vllm-operator",
)

NOT_RUN = {
    "make kind-up": "needs docker; the workflow kind.yaml runs it",
    "kind delete cluster --name vllm-operator": "needs docker; the workflow kind.yaml runs it",
    "make demo": "tests/cluster/test_demo_runs.py runs what it runs",
    "make test": "would start all tests once more",
    "make test-extended": "would start all tests once more",
    "make test-node": "needs a real kubelet",
    ".ci/run": "would start all tests once more",
    "make check": "would check all once more",
    "make image IMAGE=registry.example.com/vllm-operator:0.1.0": "takes minutes; tests/node builds the image and runs it",
    "make package": "the test packages the chart by the same command of helm",
    "trivy image --severity HIGH,CRITICAL --ignore-unfixed ghcr.io/vllm-operator/vllm-operator:0.1.0": "asks a registry",
    "make release": "takes some seconds; tests/unit/test_release.py builds and reads the same files",
    "make release-notes TAG=v0.1.0": "fails until the version is released; tests/unit/test_release.py tests it",
    "git tag --sign v0.1.0 --message v0.1.0 && git push origin v0.1.0": "publishes",
    "make install-manifest": "tests/cluster/test_release.py renders the same file",
    "kubectl apply --server-side -f dist/install.yaml": "would meet the chart of this page; tests/cluster/test_release.py applies it",
    "helm install vllm-operator oci://ghcr.io/vllm-operator/charts/vllm-operator --version 0.1.0 "
    "--namespace vllm-system --create-namespace --wait": "asks a registry; tests/cluster/test_release.py asks one of its own",
    "cosign verify ghcr.io/vllm-operator/vllm-operator:0.1.0 --certificate-oidc-issuer https://token.actions.githubusercontent.com "
    "--certificate-identity "
    "https://github.com/vllm-operator/vllm-operator/.github/workflows/release.yaml@refs/tags/v0.1.0": "asks a registry",
    "make docs": "a target of its own, which CI runs",
    "make audit": "asks pypi.org; CI runs it",
    "make install": "makes the environment that the tests run in",
    "kubectl exec deployment/vllm-operator --namespace vllm-system -- vllm-operator catalog gpus": "a simulated Pod runs nothing",
    "make test-unit": "would start these tests once more",
    "make generate": "writes into the source tree; tests compare what is there with what it would write",
    "make golden": "writes into the source tree",
    "pytest tests/unit/test_backend_product.py -m extended": "takes minutes; CI runs it among the extended tests",
    "make compare AGAINST=main OBJECTS=200 ROUNDS=1": "measures for minutes, on a machine that should be quiet",
    "python hack/bench/compare.py --phases burst": "measures for minutes, on a machine that should be quiet",
    "make ingest RELEASE=0.34.0": "downloads wheels, and the version is made up; test_ingest.py and test_oracle.py test its parts",
    "make check-oracle": "downloads wheels and installs PyTorch; tests/unit/test_oracle.py tests the parts that need neither",
    "make check-oracle VERSIONS=0.33.0 SEED=2 COUNT=50": "the same, for a version and other cases",
    "python hack/testenv/__main__.py build": "the tests have built these programs, or do not run",
    "python hack/testenv/__main__.py up": "the tests run on such a control plane",
    "python hack/testenv/__main__.py status": "belongs to a control plane of `up`",
    "python hack/testenv/__main__.py down": "belongs to a control plane of `up`",
    "kubectl get vllm --namespace models --watch": "does not end",
    "helm install prometheus-adapter prometheus-adapter --repo https://prometheus-community.github.io/helm-charts --namespace monitoring "
    "--values adapter.yaml": "downloads a chart of others",
    "kubectl get --raw /apis/custom.metrics.k8s.io/v1beta1/namespaces/models/pods/*/vllm:num_requests_waiting": "needs the adapter; "
    "tests/cluster/test_scaling.py serves this API",
    "kubectl vllm status deepseek -n models --watch": "does not end; test_status_command.py tests its parts",
    "kubectl port-forward --namespace models service/qwen 8000 &": "a simulated Pod answers nothing; tests/node asks real ones",
    "curl --silent --retry 5 --retry-connrefused http://localhost:8000/v1/models": "a simulated Pod answers nothing; tests/node asks one",
    "pytest tests/engine/test_hangs_of_vllm.py tests/engine/test_groups_of_vllm.py -v": "needs vLLM on CPUs, and takes an hour",
    "kubectl exec llama-7c9f6d5b8-x2k4p --namespace models -- ls /cache/hangs": "a simulated Pod runs nothing",
    **dict.fromkeys(
        (
            "kubectl vllm status llama -n models",
            "kubectl cp models/llama-7c9f6d5b8-x2k4p:/cache/hangs ./hangs",
            "kubectl logs llama-7c9f6d5b8-x2k4p -n models --previous > engine.log",
            "kubectl delete pod llama-7c9f6d5b8-x2k4p -n models",
            "kubectl get pod llama-7c9f6d5b8-x2k4p -n models -o wide",
            "kubectl exec llama-7c9f6d5b8-x2k4p -n models -- nvidia-smi",
            "kubectl debug node/gpu-node-1 -it --image=busybox -- chroot /host dmesg | grep -iE 'xid|nvlink|nccl'",
            "kubectl cordon gpu-node-1",
        ),
        "no engine of these models hangs; tests/node stops real ones",
    ),
    """kubectl get vllm llama --namespace models -o jsonpath='{.status.conditions[?(@.type=="Hung")].message}'""": (
        "no engine of these models hangs; tests/cluster/test_hangs.py reads the condition"
    ),
}
"""Commands that no test runs, and why."""


WALK = (
    "docs/quickstart-kind.md",
    "docs/install.md",
    "charts/vllm-operator/README.md",
    "docs/quickstart-gpu.md",
    "docs/operations.md",
    "docs/command-line.md",
    "docs/importing.md",
    "docs/exposing.md",
    "docs/autoscaling.md",
    "docs/troubleshooting.md",
    "docs/plans.md",
    "docs/presets.md",
    "docs/reading-the-status.md",
    "docs/remedies.md",
    "docs/caches.md",
    "README.md",
)
"""The pages whose commands are run, in the order in which they are read."""

GUIDES = (
    "docs/guides/migrating.md",
    "docs/guides/clouds.md",
    "docs/guides/gitops.md",
    "docs/guides/multi-tenancy.md",
    "docs/guides/openshift.md",
    "docs/guides/air-gapped.md",
)
"""The same for those who come with a cluster that serves models already."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command as it stands on a page, without the prompt and without a comment."""

    page: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def commands(path: Path) -> list[Command]:
    """The commands of a page, in their order."""
    page, text = path.relative_to(ROOT).as_posix(), path.read_text("utf-8")
    return [
        Command(page, text.count("\n", 0, block.start(3)) + 1 + number, command)
        for block in BLOCK.finditer(text)
        if block[2] == "console"
        for number, command in _in_block(block[3])
    ]


def to_run(path: Path) -> list[Command]:
    """The commands of a page that a test runs."""
    return [command for command in commands(path) if command.text not in NOT_RUN]


def _in_block(block: str) -> Iterator[tuple[int, str]]:
    lines = iter(enumerate(block.splitlines()))
    for number, line in lines:
        if not line.lstrip().startswith("$ "):
            continue
        text = line.lstrip().removeprefix("$ ")
        while text.endswith("\\"):
            text = text[:-1] + next(lines)[1].strip()
        yield number, re.sub(r"\s+# .*$", "", text).strip()


def unmarked(path: Path) -> list[str]:
    """Lines of other blocks that look like commands and are not marked as such."""
    return [
        line
        for block in BLOCK.finditer(path.read_text("utf-8"))
        if block[2] in ("", "sh", "bash", "shell")
        for line in block[3].splitlines()
        if line.lstrip("$ ").split(" ")[0] in PROGRAMS
    ]
