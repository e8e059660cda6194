# The operator's image: the locked dependencies and our wheel in a virtual environment, on a slim Python, as a user without rights.
#
#   make image
#
# Behind a proxy that inspects TLS, hand its authority over: hack/image.sh does so where PIP_CERT names one.

ARG BASE=docker.io/library/python:3.13-slim

FROM ${BASE} AS build
WORKDIR /src
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
# A virtual environment without pip: what installs stays in this stage.
RUN python3 -m venv /build && python3 -m venv --without-pip /opt/vllm-operator
COPY requirements/build.txt requirements/runtime.txt requirements/
RUN --mount=type=secret,id=authority \
    if [ -s /run/secrets/authority ]; then export PIP_CERT=/run/secrets/authority; fi; \
    /build/bin/pip install --quiet --require-hashes --only-binary=:all: -r requirements/build.txt && \
    python3 -m pip --python /opt/vllm-operator/bin/python install --quiet --require-hashes --only-binary=:all: -r requirements/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
RUN /build/bin/pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir /wheels . && \
    python3 -m pip --python /opt/vllm-operator/bin/python install --quiet --no-deps --no-index /wheels/*.whl
COPY hack/image_contents.py hack/
RUN /opt/vllm-operator/bin/python hack/image_contents.py /opt/vllm-operator
# The programs for Pods of VLLMDeployments, which an init container copies from here.
COPY hack/build_tools.py hack/
RUN python3 hack/build_tools.py /opt/vllm-operator/tools.pyz

FROM ${BASE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="vllm-operator" \
      org.opencontainers.image.description="A Kubernetes operator for backend-aware vLLM deployments" \
      org.opencontainers.image.source="https://github.com/vllm-operator/vllm-operator" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# A name for the user: Python asks for it. Nobody installs anything here any more, so pip goes.
RUN echo 'vllm-operator:x:65532:65532:vllm-operator:/nonexistent:/usr/sbin/nologin' >> /etc/passwd && \
    echo 'vllm-operator:x:65532:' >> /etc/group && \
    rm -rf /usr/local/bin/pip* /usr/local/lib/python3*/site-packages/pip* /usr/local/lib/python3*/ensurepip
COPY --from=build /opt/vllm-operator /opt/vllm-operator
# The base ships the standard library without byte code, and the operator's file system is read-only. Importing the operator once writes the
# byte code of what it imports; otherwise each start would compile 300 modules, which takes half a second of CPU time.
RUN /opt/vllm-operator/bin/python -c 'import vllm_operator.controller.app'
# LOGNAME: for clusters that choose a user ID of their own, which has no name.
# MALLOC_ARENA_MAX: one arena of malloc for all threads, which return memory sooner.
ENV PATH=/opt/vllm-operator/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1 MALLOC_ARENA_MAX=1 \
    HOME=/tmp LOGNAME=vllm-operator
USER 65532:65532
WORKDIR /
EXPOSE 8080
ENTRYPOINT ["vllm-operator"]
CMD ["run"]
