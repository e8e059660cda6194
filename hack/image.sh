#!/usr/bin/env bash
# Build the operator's image with docker, podman or buildah.
#
#   hack/image.sh [NAME:TAG]
#
# BUILDER     docker, podman or buildah, optionally with options; default: the first one that works
# BASE        another base image; it needs Python 3.11 or newer as python3
# IMAGE_ARGUMENTS  additional arguments of the build
# PIP_CERT    certificate authorities for the package index, for a proxy that inspects TLS
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' operator/vllm_operator/__init__.py)
tag=${1:-ghcr.io/vllm-operator/vllm-operator:$version}

builder() {
    if docker info >/dev/null 2>&1; then echo docker
    elif command -v podman >/dev/null; then echo podman
    elif command -v buildah >/dev/null; then echo buildah
    else
        echo "No docker daemon, podman or buildah found. Install one of them; on Debian: apt-get install buildah" >&2
        return 1
    fi
}

read -ra command <<<"${BUILDER:-$(builder)}"
[ "${#command[@]}" -gt 0 ]
arguments=(--tag "$tag" --file Dockerfile --build-arg "VERSION=$version")
if revision=$(git rev-parse HEAD 2>/dev/null); then arguments+=(--build-arg "REVISION=$revision"); fi
if [ -n "${BASE:-}" ]; then arguments+=(--build-arg "BASE=$BASE"); fi
if [ -s "${PIP_CERT:-}" ]; then arguments+=(--secret "id=authority,src=$PIP_CERT"); fi
case "${command[0]##*/}" in
    docker | podman) verb=build ;;
    # --layers: by default, buildah keeps no layers and would install everything again each time
    *) verb=bud && arguments+=(--layers --format docker) ;;
esac
read -ra further <<<"${IMAGE_ARGUMENTS:-}"
echo "building $tag with ${command[0]##*/}" >&2
exec "${command[@]}" "$verb" "${arguments[@]}" "${further[@]}" .
