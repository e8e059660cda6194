"""The table of caches: complete, on the volume, and never a variable that a version does not know."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from support.gpus import real_node
from support.plans import deployment, made, planned
from vllm_operator.api.labels import REPLAN_ANNOTATION
from vllm_operator.api.spec import Distribution
from vllm_operator.catalog.caches import CACHE_ROOT, WEIGHTS_ROOT, Caches
from vllm_operator.catalog.entry import parse_entry, read_data
from vllm_operator.catalog.loader import load_catalog
from vllm_operator.rendering.container import render_container

CACHES = load_catalog().caches


def variables(version: str | None, distribution: Distribution = Distribution.VLLM) -> Mapping[str, str]:
    return {variable.name: variable.value for variable in CACHES.variables_of(version, distribution)}


ALWAYS = {
    "HOME",
    "USER",
    "XDG_CACHE_HOME",
    "VLLM_CACHE_ROOT",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TRITON_CACHE_DIR",
    "DG_JIT_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE",
    "CUDA_CACHE_PATH",
    "CUDA_CACHE_MAXSIZE",
    "OUTLINES_CACHE_DIR",
    "PYTHONPYCACHEPREFIX",
    "PYTHONDONTWRITEBYTECODE",
    "HF_HOME",
}
SINCE_0_16 = ALWAYS | {"CUTE_DSL_CACHE_DIR"}
SINCE_0_20 = SINCE_0_16 | {
    "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR",
    "QUACK_CACHE_DIR",
    "TILELANG_CACHE_DIR",
    "HUMMING_CACHE_DIR",
    "TVM_FFI_CACHE_DIR",
}
SINCE_0_24 = SINCE_0_20 | {"MINFER_FMHA_CACHE_DIR"}


@pytest.mark.parametrize(
    ("version", "want_names"),
    [
        ("0.12.0", ALWAYS),
        ("0.16.0", SINCE_0_16),
        ("0.19.0", SINCE_0_16),
        ("0.20.1", SINCE_0_20),
        ("v0.20.1", SINCE_0_20),
        ("0.23.0", SINCE_0_20),
        ("0.24.0rc1", SINCE_0_20),
        ("0.24.0", SINCE_0_24),
        ("0.33.0", SINCE_0_24),
        (None, SINCE_0_24),
        ("not a version", SINCE_0_24),
    ],
)
def test_each_version_gets_the_variables_that_it_reads(version: str | None, want_names: set[str]) -> None:
    assert set(variables(version)) == want_names


def test_only_one_variable_of_vllm_itself_is_set_because_all_others_are_part_of_the_compile_key() -> None:
    assert [name for name in variables(None) if name.startswith("VLLM_")] == ["VLLM_CACHE_ROOT"]


def test_nvllm_also_keeps_its_own_attention_kernels() -> None:
    extra = set(variables(None, Distribution.NVLLM)) - set(variables(None))
    assert extra == {"B12X_CUTE_COMPILE_DISK_CACHE", "B12X_CUTE_COMPILE_CACHE_DIR"}


def test_every_folder_is_on_the_volume_and_weights_are_apart() -> None:
    assert all(cache.directory == CACHE_ROOT or cache.directory.startswith(f"{CACHE_ROOT}/") for cache in CACHES.compiled)
    paths = [value for name, value in variables(None, Distribution.NVLLM).items() if value.startswith("/")]
    assert [path for path in paths if not path.startswith(CACHE_ROOT)] == [WEIGHTS_ROOT]


def test_what_has_no_variable_lands_on_the_volume_through_home() -> None:
    assert variables(None)["HOME"] == CACHE_ROOT
    assert variables(None)["XDG_CACHE_HOME"] == f"{CACHE_ROOT}/.cache"


def test_every_cache_says_what_it_holds_and_where_this_is_known_from() -> None:
    for cache in (*CACHES.compiled, CACHES.weights):
        assert cache.holds, cache.name
        assert cache.source, cache.name
        assert all(variable.reason for variable in cache.variables), cache.name


ENTRY = {"name": "a", "holds": "things", "directory": "a", "variables": {"A_DIR": "{directory}"}, "default": "~/a", "source": "a.py"}
WEIGHTS = {**ENTRY, "name": "weights", "directory": ".", "variables": {"HF_HOME": "{directory}"}}


@pytest.mark.parametrize(
    ("entries", "want_message"),
    [
        ([ENTRY, {**ENTRY, "name": "b"}], "set by more than one cache"),
        ([{**ENTRY, "folder": "typo"}], r"caches\[0\]: 'folder' is not a field; use one of default, directory, distributions"),
        ([{**ENTRY, "versions": "newer than 0.20"}], "'newer than 0.20' is not a range of versions"),
        ([{**ENTRY, "distributions": ["vllm"]}], r"'vllm' does not exist \(did you mean vLLM\?\)"),
    ],
)
def test_a_malformed_table_is_refused(entries: list[object], want_message: str) -> None:
    with pytest.raises(ValueError, match=want_message):
        parse_entry(Caches, {**read_data("caches.yaml"), "caches": entries, "weights": WEIGHTS})


def test_the_documentation_names_every_variable() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "caches.md").read_text("utf-8")
    undocumented = [name for name in variables(None, Distribution.NVLLM) if f"`{name}`" not in page]
    assert undocumented == []


def test_an_image_cannot_keep_python_from_filling_the_cache_of_bytecode() -> None:
    """An empty value means off to Python, and a variable of a Pod beats one of its image."""
    assert variables(None)["PYTHONDONTWRITEBYTECODE"] == ""
    assert variables(None)["PYTHONPYCACHEPREFIX"] == f"{CACHE_ROOT}/bytecode"


@pytest.mark.parametrize("name", ["PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"])
def test_a_variable_of_the_bytecode_that_the_user_sets_is_kept_with_a_note(name: str) -> None:
    value = "" if name == "PYTHONPYCACHEPREFIX" else "1"
    resource = deployment(engine={"version": "0.20.1", "env": [{"name": name, "value": value}]})
    plan = made(resource, real_node("h100-sxm"))
    [note] = [note for note in plan.notes if name in note]
    assert note.startswith(f"You set {name} to {value!r}, which replaces ")
    assert [variable.name for variable in plan.env if variable.name == name] == []
    rendered = [entry for entry in render_container(resource, plan)["env"] if entry["name"] == name]
    assert rendered == [{"name": name, "value": value} if value else {"name": name}]


def test_a_plan_from_before_there_was_this_cache_keeps_its_pods_as_they_are() -> None:
    """An upgrade of the operator restarts nothing: the new variables come with the next plan."""
    added = ("PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE")
    resource, node = deployment(replicas=2), real_node("h100-sxm")
    today = made(resource, node)
    before = today.model_copy(update={"env": [variable for variable in today.env if variable.name not in added]})
    kept = planned(resource, node, pinned=before)
    assert kept.plan == before
    assert render_container(resource, kept.plan) == render_container(resource, before)
    assert {text.split()[2] for text in kept.drift} == set(added)
    # leaving a damaged directory behind is a new key, and not a new plan
    again = made(resource, node, pinned=before, cache_generation=1)
    assert again.cache_key != before.cache_key
    assert again.env == before.env
    asked = made(deployment(replicas=2, annotations={REPLAN_ANNOTATION: "now"}), node, pinned=before)
    assert set(added) <= {variable.name for variable in asked.env}
    # the folder on the volume stays the same: only what is missing in it is filled
    assert asked.cache_key == before.cache_key


@pytest.mark.parametrize(("version", "in_keys"), [("0.21.0", ["VLLM_NIXL_SIDE_CHANNEL_HOST"]), ("0.22.0", []), ("0.33.0", [])])
def test_a_value_that_differs_from_pod_to_pod_is_reported(version: str, in_keys: list[str]) -> None:
    field = {"fieldRef": {"fieldPath": "status.podIP"}}
    env = [{"name": name, "valueFrom": field} for name in ("VLLM_NIXL_SIDE_CHANNEL_HOST", "VLLM_HOST_IP", "MY_POD_IP")]
    notes = made(deployment(engine={"version": version, "env": env}), real_node("h100-sxm")).notes
    assert [note.partition(" ")[0] for note in notes if "fieldRef" in note] == in_keys
