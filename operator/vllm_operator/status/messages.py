"""The texts of conditions and events.

Each text is a jinja2 template in `catalog/data/messages.yaml`. Code chooses a template and passes the values. A template fails if it uses
a value that it was not given; the tests render all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vllm_operator.catalog.entry import Entry, load_file
from vllm_operator.logs.state import Stage
from vllm_operator.pods.view import Phase
from vllm_operator.text import wording


class MessageTexts(Entry):
    """The content of `messages.yaml`: templates by name, and words for the stages of a start and for phases of a Pod, in a sentence."""

    stages: Mapping[str, str]
    phases: Mapping[str, str]
    messages: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Messages:
    """The templates, and the words for the stages of a start and for phases of a Pod."""

    environment: jinja2.Environment
    texts: Mapping[str, str]
    stages: Mapping[Stage, str]
    phases: Mapping[Phase, str]
    compiled: dict[str, jinja2.Template] = field(default_factory=dict)
    """Those that were used. An operator uses a few of them, and all together take a tenth of its start."""

    def say(self, name: str, *, limit: int = wording.MESSAGE_LIMIT, **facts: Any) -> str:
        """Render a message: one line, free of control characters, at most `limit` characters.

        Raises:
            KeyError: There is no such message.
            jinja2.TemplateSyntaxError: It is malformed; the tests render all messages.
            jinja2.UndefinedError: The message names a fact that is not given.
        """
        return wording.clean(self._template(name).render(**facts), limit)

    def fit(self, name: str, *, shrink: tuple[str, ...], limit: int = wording.MESSAGE_LIMIT, **facts: Any) -> str:
        """Render a message; where it is too long, shorten the facts in `shrink`, the longest first, not its end."""
        shrunk = dict(facts)
        for _ in range(8):
            excess = len(wording.clean(self._template(name).render(**shrunk), 16 * limit)) - limit
            longest = max(shrink, key=lambda key: len(shrunk[key] or ""))
            if excess <= 0 or len(shrunk[longest] or "") < 60:
                break
            shrunk[longest] = wording.shorten(shrunk[longest], max(40, len(shrunk[longest]) - excess))
        return self.say(name, limit=limit, **shrunk)

    def _template(self, name: str) -> jinja2.Template:
        if name not in self.compiled:
            self.compiled[name] = self.environment.from_string(self.texts[name])
        return self.compiled[name]

    def stage(self, stage: str) -> str:
        """Say a stage in words."""
        return self.stages[Stage(stage)] if stage in Stage.__members__.values() else stage


@cache
def load_messages() -> Messages:
    """Read the messages that ship with the package."""
    return prepare_messages(load_file(MessageTexts, "messages.yaml"))


def prepare_messages(texts: MessageTexts) -> Messages:
    """Prepare messages; each is compiled when it is used first.

    Raises:
        ValueError: A stage or phase is unknown, or a stage has no words.
    """
    # Plain text needs no escaping. In the sandbox, a template cannot call anything.
    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True)
    environment.globals.clear()  # no template uses these functions, and each message would get a copy of the list of them
    environment.filters |= {
        "duration": wording.duration,
        "clock": wording.clock,
        "time": wording.time_of_day,
        "minute": wording.minute,
        "count": wording.count,
        "quote": lambda text, limit=200: wording.clean(text, limit),
        "sentence": wording.sentence,
        "scheduler": wording.without_preemption,
        "pull": wording.without_pull,
        "refusal": wording.without_pod_name,
    }
    stages = {Stage(name): words for name, words in texts.stages.items()}
    if missing := set(Stage) - set(stages):
        raise ValueError(f"stages without words: {sorted(missing)}")
    phases = {Phase(name): words for name, words in texts.phases.items()}
    return Messages(environment, texts.messages, stages, phases)
