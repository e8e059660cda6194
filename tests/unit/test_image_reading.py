"""A Job reads the build of vLLM in an image of unknown version, and plans follow from its table. On a cluster in memory."""

import json
from typing import Any

import pytest

from support.builds import IMAGE, OWN_FLAG, build_table, printed
from support.fleet import Fleet
from support.operators import Bench
from support.plans import deployment
from vllm_operator.api import labels
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.catalog.builds import PACKED_LIMIT
from vllm_operator.catalog.versions import load_versions
from vllm_operator.kube.client import EVENT, JOB, POD, REVISION, VLLM_DEPLOYMENT, ClusterError, Forbidden, Invalid, Unavailable
from vllm_operator.pods.tools import TOOLS_IMAGE
from vllm_operator.rendering.image_reading import READER, image_to_read, render_reading

OWN = {"image": IMAGE, "args": [{"name": OWN_FLAG, "value": "1"}]}
DIGEST = f"registry.example/team/vllm@sha256:{'1' * 64}"


def jobs(bench: Bench) -> list[dict[str, Any]]:
    return [dict(job) for job in bench.cluster.all(JOB)]


def records(bench: Bench) -> list[dict[str, Any]]:
    return [item for item in bench.cluster.all(REVISION) if item["metadata"]["labels"][labels.COMPONENT_LABEL] == "build"]


def run_job(bench: Bench, output: str | None = None, *, code: int = 0, message: str = "", node: str = "node-1", **status: Any) -> str:
    """The Pod of the only Job has printed this, or is in this state; return its name."""
    [job] = jobs(bench)
    ended = {"name": READER, "state": {"terminated": {"exitCode": code, "message": message, "reason": "Error" if code else "Completed"}}}
    over = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [ended]}
    name = Fleet(bench).start_job(job, status or over, node=node)
    if output is not None:
        bench.cluster.script_log("default", name, [f"2026-11-21T12:00:00Z {output}".encode()])
    return name


def args(bench: Bench) -> list[str]:
    return list(bench.container()["args"])


async def test_the_plan_waits_for_the_job_and_then_uses_and_names_the_table(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(engine=OWN)
    [job] = jobs(bench)
    assert job["metadata"]["ownerReferences"][0]["kind"] == "VLLMDeployment"
    ready, reading = bench.condition("Ready"), bench.condition("ReadingImage")
    assert (ready.status, ready.reason, reading.status, reading.reason) == ("False", "ReadingImage", "True", "ReadingImage")
    assert "from image registry.example/team/vllm:nightly before a plan is made." in ready.message
    assert fleet.deployment() is None
    run_job(bench, printed(build_table()))
    await fleet.settle()
    assert OWN_FLAG in args(bench)
    assert "were read from the image, which contains vLLM 0.34.0.dev7" in json.dumps(bench.plan().to_json())
    assert bench.message("ReadingImage") == ""
    assert len(records(bench)) == 1


async def test_a_name_that_the_build_lacks_is_told(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(engine={"image": IMAGE, "args": [{"name": "--flag-of-nobody", "value": "1"}]})
    run_job(bench, printed(build_table()))
    await fleet.settle()
    assert "does not know the flag --flag-of-nobody and does not start with it" in json.dumps(bench.plan().to_json())


async def test_what_was_read_is_known_after_a_restart_without_the_job(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(engine=OWN)
    bench.restart()
    await fleet.settle()
    assert len(jobs(bench)) == 1
    pod = run_job(bench, printed(build_table()))
    await fleet.settle()
    bench.cluster.remove(JOB, "default", jobs(bench)[0]["metadata"]["name"])  # its TTL has passed
    bench.cluster.remove(POD, "default", pod)
    bench.restart()
    await fleet.change(sizing={"contextLength": 4096})
    assert jobs(bench) == []
    assert OWN_FLAG in args(bench)
    assert bench.message("PlanDrifted") == ""


async def test_the_replicas_serve_the_previous_plan_while_a_job_reads_another_image(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(replicas=1, cache={"priming": "Never"})
    fleet.ready(fleet.start())
    await fleet.settle()
    before = bench.container()
    await fleet.change(engine={**OWN, "version": None})
    assert bench.container() == before
    assert "The previous spec is still served." in bench.message("Ready")
    run_job(bench, printed(build_table()))
    await fleet.settle()
    assert bench.container()["image"] == IMAGE


HOSTILE = {
    "nothing": "",
    "no JSON": printed("x")[:-9] + "\n",
    "text": printed("x"),
    "a list": printed([]),
    "flags of another type": printed(build_table(flags=7)),
    "variables of another type": printed(build_table(variables={"VLLM_A": {"values": {"a": 1}}})),
    "another version": printed(build_table(version="latest")),
    "a name that cannot be printed": printed(build_table(flags={"--a\x1b[31m": []})),
    "a long name": printed(build_table(flags={"-" * 600: []})),
    "too many names": printed(build_table(flags={f"--flag-{number}": [] for number in range(20_000)})),
    "a bomb": printed("x" * 50_000_000),
    "a long line": f"vllm-operator-build {'A' * (PACKED_LIMIT + 1)}\n",
    "deep nesting": printed("x").replace(printed("x"), "") + "vllm-operator-build " + "W1tb" * 100 + "\n",
}


@pytest.mark.parametrize("output", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_output_leads_to_the_nearest_release_with_a_warning(bench: Bench, fleet: Fleet, output: str) -> None:
    await fleet.serve(engine={"version": "0.34.0.dev7", "image": IMAGE})
    run_job(bench, output)
    await fleet.settle()
    warned = bench.condition("ReadingImage")
    assert (warned.status, warned.reason) == ("True", "ImageUnreadable")
    assert "could not be read: " in warned.message
    assert warned.message.isprintable()
    assert "vLLM 0.34.0.dev7 is not in the catalog. The operator treats it like 0.33.0." in json.dumps(bench.plan().to_json())
    assert [event["reason"] for event in bench.cluster.all(EVENT)].count("ImageUnreadable") == 1


async def test_an_image_of_unknown_version_that_cannot_be_read_needs_the_version_as_before(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(engine={"image": IMAGE})
    run_job(bench, code=1, message="no vLLM that can be read below /: it contains no vllm/envs.py with variables")
    await fleet.settle()
    assert bench.condition("Ready").reason == "VersionUnknown"
    assert "it contains no vllm/envs.py with variables" in bench.message("ReadingImage")


async def test_a_failed_reading_is_repeated_only_after_a_change_of_the_spec_or_a_request(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(engine={"image": IMAGE, "version": "0.34.0"})
    names = set[str]()
    changes: tuple[dict[str, Any], ...] = ({}, {"sizing": {"contextLength": 4096}})
    for again in changes:
        await fleet.change("llama", **again)
        names.add(jobs(bench)[0]["metadata"]["name"])
        pod = run_job(bench, code=1, message="no")
        await fleet.settle()
        bench.cluster.remove(JOB, "default", jobs(bench)[0]["metadata"]["name"])
        bench.cluster.remove(POD, "default", pod)
        bench.restart()
        await fleet.settle()
        assert jobs(bench) == []
        assert len(records(bench)) == 1, "only the last failure is kept"
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {labels.REPLAN_ANNOTATION: "1"}}})
    await fleet.settle()
    names.add(jobs(bench)[0]["metadata"]["name"])
    assert len(names) == 3


@pytest.mark.parametrize(("image", "again"), [(IMAGE, 1), (DIGEST, 0)])
async def test_a_request_for_a_new_plan_reads_a_tag_again_and_never_a_digest(bench: Bench, fleet: Fleet, image: str, again: int) -> None:
    await fleet.serve(engine={"image": image})
    pod = run_job(bench, printed(build_table()))
    await fleet.settle()
    bench.cluster.remove(JOB, "default", jobs(bench)[0]["metadata"]["name"])
    bench.cluster.remove(POD, "default", pod)
    bench.cluster.edit(VLLM_DEPLOYMENT, "default", "llama", {"metadata": {"annotations": {labels.REPLAN_ANNOTATION: "1"}}})
    await fleet.settle()
    assert len(jobs(bench)) == again


@pytest.mark.parametrize("type", ["Failed", "Complete"])
async def test_a_job_whose_pod_is_gone_has_failed(bench: Bench, fleet: Fleet, type: str) -> None:
    await fleet.serve(engine={"image": IMAGE, "version": "0.34.0"})
    message = "Job was active longer than specified deadline" if type == "Failed" else ""
    done = {"type": type, "status": "True", "message": message}
    bench.cluster.edit(JOB, "default", jobs(bench)[0]["metadata"]["name"], {"status": {"conditions": [done]}})
    await fleet.settle()
    assert bench.condition("ReadingImage").reason == "ImageUnreadable"
    assert (message or "the Pod is gone") in bench.message("ReadingImage")


async def test_why_the_pod_waits_is_told_and_it_is_looked_at_again(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(engine=OWN)
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available: Insufficient cpu."}
    run_job(bench, node="", phase="Pending", conditions=[why])
    await fleet.settle()
    assert "It waits: 0/3 nodes are available: Insufficient cpu." in bench.message("Ready")
    assert ((await fleet.bench.reconciler.reconcile(("default", "llama"))).requeue_seconds or 99) <= 30


async def test_a_log_that_cannot_be_read_now_is_read_later(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(engine=OWN)
    pod = run_job(bench)
    bench.cluster.script_log("default", pod, [Unavailable("no answer")], [printed(build_table()).encode()])
    await fleet.settle()
    await fleet.settle()
    assert OWN_FLAG in args(bench)


@pytest.mark.parametrize("error", [Forbidden("no Jobs here"), Invalid("quota")])
async def test_a_refused_job_is_a_failure(bench: Bench, fleet: Fleet, error: ClusterError) -> None:
    bench.cluster.fail("create", JOB, error, times=1)
    await fleet.serve(engine={"image": IMAGE, "version": "0.34.0"})
    assert f"the Job that reads it is refused: {error}" in bench.message("ReadingImage")
    assert fleet.replicas() == 1


async def test_a_job_and_a_record_of_somebody_else_say_nothing(bench: Bench, fleet: Fleet) -> None:
    await fleet.serve(engine={"image": IMAGE, "version": "0.34.0"})
    [job] = jobs(bench)
    bench.cluster.remove(JOB, "default", job["metadata"]["name"])
    job["metadata"]["ownerReferences"][0]["uid"] = "another"
    bench.cluster.put(job)
    pod = run_job(bench, printed(build_table()))
    await fleet.settle()
    assert "is not controlled by this object" in bench.message("ReadingImage")
    assert pod not in {request.pod for request in bench.cluster.log_requests}
    [record] = records(bench)
    record["metadata"]["ownerReferences"][0]["uid"] = "another"
    bench.cluster.put({**record, "data": {"table": printed(build_table()).split()[1]}})
    await fleet.settle()
    assert OWN_FLAG not in json.dumps(bench.plan().to_json())


@pytest.mark.parametrize(
    ("engine", "image"),
    [
        ({}, None),
        ({"version": "0.33.0"}, None),
        ({"image": "vllm/vllm-openai:v0.33.0"}, None),
        ({"image": IMAGE, "version": "0.33.0"}, None),
        ({"image": "vllm/vllm-openai:v0.33.0", "introspect": "Enabled"}, "vllm/vllm-openai:v0.33.0"),
        ({"version": "0.33.0", "introspect": "Enabled"}, "vllm/vllm-openai:v0.33.0"),
        ({"image": IMAGE}, IMAGE),
        ({"image": DIGEST}, DIGEST),
        ({"image": "vllm/vllm-openai:0a1b2c3d"}, "vllm/vllm-openai:0a1b2c3d"),
        ({"image": "vllm/vllm-openai:v0.99.0"}, "vllm/vllm-openai:v0.99.0"),
        ({"version": "0.99.0"}, "vllm/vllm-openai:v0.99.0"),
        ({"image": IMAGE, "version": "0.33.0.post1"}, IMAGE),
        ({"image": IMAGE, "introspect": "Disabled"}, None),
        ({"image": IMAGE, "version": "0.99"}, None),
    ],
)
def test_an_image_of_unknown_version_is_read_unless_the_spec_says_otherwise(engine: dict[str, str], image: str | None) -> None:
    assert image_to_read(deployment(engine=engine), load_versions()) == image


@pytest.mark.parametrize("spec", [{"containers": {}}, {"volumes": [{"name": {}}]}, 7])
def test_a_template_that_cannot_be_merged_is_left_to_the_plan(spec: Any) -> None:
    assert image_to_read(deployment(engine={"image": IMAGE}, podTemplate={"spec": spec}), load_versions()) is None


def test_the_job_has_no_gpu_no_token_no_root_and_little_of_everything() -> None:
    template = {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}], "nodeSelector": {"pool": "a"}, "runtimeClassName": "nvidia"}}
    resource: VLLMDeployment = deployment(engine={"image": IMAGE}, podTemplate=template)
    spec = render_reading(resource, IMAGE, TOOLS_IMAGE)["spec"]
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    assert (spec["backoffLimit"], spec["activeDeadlineSeconds"], pod["restartPolicy"]) == (0, 1800, "Never")
    assert (pod["automountServiceAccountToken"], "runtimeClassName" in pod, pod["nodeSelector"]) == (False, False, {"pool": "a"})
    assert container["command"][-2:] == ["read-build", "/"]
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "1Gi"}
    context = container["securityContext"]
    assert (context["runAsNonRoot"], context["runAsUser"], context["readOnlyRootFilesystem"]) == (True, 65532, True)
    assert "env" not in container


@pytest.mark.parametrize(
    ("context", "user"),
    [({}, 65532), ({"runAsNonRoot": True}, None), ({"runAsNonRoot": True, "runAsUser": 7}, 7), ({"runAsUser": 0}, 65532)],
    ids=["nothing said", "a platform that chooses the user, as OpenShift", "a user", "root"],
)
def test_the_job_runs_as_the_user_of_the_template_or_as_one_without_rights(context: Any, user: int | None) -> None:
    resource: VLLMDeployment = deployment(engine={"image": IMAGE}, podTemplate={"spec": {"securityContext": context}})
    [container] = render_reading(resource, IMAGE, TOOLS_IMAGE)["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"].get("runAsUser") == user
