"""What the condition Crashed says about a crash, with names as long as those of a real cluster."""

from support import observations as o
from vllm_operator.api.conditions import find_condition
from vllm_operator.logs.state import Crash, Stage, StartupState
from vllm_operator.status.report import report
from vllm_operator.text import wording

POD = "llama-3-70b-instruct-7d9f8b6c54-x2x4qz9w"
"""40 characters."""


def said(crash: Crash) -> str:
    """The message of the condition after two restarts."""
    state = StartupState(stage=Stage.MEMORY_PROFILING, crash=crash, last_line_at=o.at(-31), lines=9)
    status = report(o.observe(o.crashed_pod(POD, restarts=2), states={(POD, 2): state})).status
    crashed = find_condition(status.conditions, "Crashed")
    assert crashed is not None
    return crashed.message


def says_the_whole_remedy(crash: Crash) -> bool:
    """Whether the condition has the remedy word for word, and nothing in it is masked as a secret."""
    remedy, message = wording.clean(crash.remedy or "", 1000).replace("NODE", "gpu-node-1"), said(crash)
    return "***" not in remedy and remedy.rstrip(".") in message and len(message.partition(" (See ")[0]) <= wording.MESSAGE_LIMIT
