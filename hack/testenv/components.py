"""The command lines of the control plane's components."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from testenv.binaries import kubernetes_minor

LOOPBACK = "127.0.0.1"
POLICIES, POLICIES_SINCE = "admissionregistration.k8s.io/v1beta1", 34
"""Of the policy that lets a Namespace carry the simulator's annotations for the Pods in it: its API, and the minor version that has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Where the components of one control plane are and where they listen."""

    folder: Path
    binaries: Mapping[str, Path]
    etcd_port: int
    port: int
    audited: bool
    address: str = LOOPBACK
    """Where the API server listens. At another address than loopback, real kubelets can reach it and it them."""

    @property
    def has_real_nodes(self) -> bool:
        return self.address != LOOPBACK

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def authority(self) -> Path:
        return self.folder / "pki" / "apiserver.crt"

    @property
    def authority_key(self) -> Path:
        return self.folder / "pki" / "apiserver.key"

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"


def etcd(setup: Setup) -> Sequence[str]:
    """A single member that keeps nothing safe: its data goes with the environment."""
    client = f"http://127.0.0.1:{setup.etcd_port}"
    # a single member has no peers to listen to: any free port will do
    peer = "http://127.0.0.1:0"
    return [
        str(setup.binaries["etcd"]),
        f"--data-dir={setup.folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--quota-backend-bytes=4294967296",
        "--unsafe-no-fsync",
    ]


def apiserver(setup: Setup) -> Sequence[str]:
    pki = setup.folder / "pki"
    policies = ["--feature-gates=MutatingAdmissionPolicy=true", f"--runtime-config={POLICIES}=true"]
    audit = [
        f"--audit-log-path={setup.audit_log}",
        "--audit-log-mode=blocking",
        "--audit-log-maxsize=10240",  # MiB; by default a new file begins after 100, and tests read only one
        f"--audit-policy-file={setup.folder / 'audit-policy.yaml'}",
    ]
    return [
        str(setup.binaries["kube-apiserver"]),
        f"--etcd-servers=http://127.0.0.1:{setup.etcd_port}",
        f"--bind-address={setup.address}",
        f"--advertise-address={setup.address}",
        # a loopback address may not be in a Service; nothing here reaches the API server through one then
        *([] if setup.has_real_nodes else ["--endpoint-reconciler-type=none"]),
        f"--secure-port={setup.port}",
        f"--cert-dir={pki}",
        f"--service-account-key-file={setup.authority_key}",
        f"--service-account-signing-key-file={setup.authority_key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--token-auth-file={pki / 'tokens.csv'}",
        "--authorization-mode=Node,RBAC",
        # as OpenShift does: who lets an object block another's deletion needs a right to that other one
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",
        # tests measure the operator, not the server's throttling
        "--enable-priority-and-fairness=false",
        "--max-requests-inflight=0",
        "--max-mutating-requests-inflight=0",
        *(policies if kubernetes_minor() >= POLICIES_SINCE else []),
        # stop at once, even with watches open
        "--shutdown-delay-duration=0s",
        "--profiling=false",
        *(audit if setup.audited else []),
    ]


def controller_manager(setup: Setup) -> Sequence[str]:
    return [
        str(setup.binaries["kube-controller-manager"]),
        f"--kubeconfig={setup.kubeconfig}",
        f"--service-account-private-key-file={setup.authority_key}",
        f"--root-ca-file={setup.authority}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        # simulated nodes send no heartbeats; real ones do every few seconds, and tests wait until one is given up
        f"--node-monitor-grace-period={'16s' if setup.has_real_nodes else '24h'}",
        "--node-monitor-period=1s",
        "--profiling=false",
    ]


def scheduler(setup: Setup) -> Sequence[str]:
    return [
        str(setup.binaries["kube-scheduler"]),
        f"--kubeconfig={setup.kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        "--profiling=false",
    ]
