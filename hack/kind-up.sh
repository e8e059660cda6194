#!/usr/bin/env bash
# Create a kind cluster with the operator, built from this checkout. It needs no GPU, and the cluster has none.
#
#   make kind-up                      cluster "vllm-operator", image and chart from this checkout
#   KIND_CLUSTER=mine make kind-up    use an existing kind cluster
#
# To remove everything: kind delete cluster --name vllm-operator
set -euo pipefail
cd "$(dirname "$0")/.."

cluster=${KIND_CLUSTER:-vllm-operator}
namespace=vllm-system
for program in docker kind kubectl helm; do
    if ! command -v "$program" >/dev/null; then
        echo "$program is not installed. make kind-up needs docker, kind, kubectl and helm." >&2
        exit 1
    fi
done

# not `grep -q`: it closes the pipe at the first match, and the writer then fails
if ! kind get clusters | grep -x "$cluster" >/dev/null; then
    kind create cluster --name "$cluster" --wait 120s
fi
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' operator/vllm_operator/__init__.py)
image=ghcr.io/vllm-operator/vllm-operator:$version
BUILDER=docker hack/image.sh "$image"
kind load docker-image --name "$cluster" "$image"

context=kind-$cluster
kubectl --context "$context" create namespace "$namespace" --dry-run=client -o yaml | kubectl --context "$context" apply -f -
kubectl --context "$context" label --overwrite namespace "$namespace" pod-security.kubernetes.io/enforce=restricted
helm --kube-context "$context" upgrade --install vllm-operator charts/vllm-operator --namespace "$namespace" --wait --timeout 3m
# the image may have been rebuilt with the same version
kubectl --context "$context" --namespace "$namespace" rollout restart deployment/vllm-operator
kubectl --context "$context" --namespace "$namespace" rollout status deployment/vllm-operator --timeout 2m
