"""Directories that were left behind as damaged: nobody starts with them again."""

from vllm_operator.upkeep.records import is_quarantined
from vllm_operator.upkeep.situation import Situation

MOST_GENERATIONS = 64
"""A claim on which so many were left behind is beyond repair; the last one is used, and fails."""


def next_generation(situation: Situation) -> int | None:
    """The generation to plan with instead; None if the directory of the plan is sound, or Pods run with it.

    Pods that run with a directory that somebody else has found damaged have loaded what they need; they go on.
    """
    address = situation.address
    if address is None or address == situation.present_address or not is_quarantined(situation.claim, address.key):
        return None
    text = next((part.value for part in situation.plan.cache_key_parts if part.name == "generation"), "")
    generation = int(text) + 1 if text.isdecimal() else 1
    return generation if generation <= MOST_GENERATIONS else None
