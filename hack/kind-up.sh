#!/usr/bin/env bash
# A kind cluster with the operator in it, built from this tree. No GPU is needed; none is there to be found either.
#
#   make kind-up                      cluster "vllm-operator", image and chart from this tree
#   KIND_CLUSTER=mine make kind-up    in a kind cluster that exists already
#
# kind delete cluster --name vllm-operator takes it all away.
set -euo pipefail
cd "$(dirname "$0")/.."

cluster=${KIND_CLUSTER:-vllm-operator}
namespace=vllm-system
for program in docker kind kubectl helm; do
    if ! command -v "$program" >/dev/null; then
        echo "There is no $program. docker, kind, kubectl and helm are needed." >&2
        exit 1
    fi
done

# not `grep -q`: it closes the pipe at the first match, and what still writes into it fails
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
# an image of the same version that was just rebuilt
kubectl --context "$context" --namespace "$namespace" rollout restart deployment/vllm-operator
kubectl --context "$context" --namespace "$namespace" rollout status deployment/vllm-operator --timeout 2m
