"""Read the config.json of models from the hub, in separate tasks.

A new plan waits for the file, up to a time limit, but no worker does: the reconciliation ends, and the key is added to the queue when there
is an answer or the time is over. The time limit starts with the request, not while the question waits for other reads. An answer is cached
for an hour, a failure for a minute. A hub that cannot be reached, or that fails for several models and answers for none, gets no request
for a minute. One slow model does not count as a failing hub.
"""

import asyncio
import base64
import binascii
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import NamedTuple

from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import AdapterSpec, ModelSpec
from vllm_operator.hub.client import HttpHub, HubAnswer
from vllm_operator.kube.client import SECRET, ClusterClient, ClusterError, Forbidden, Key, NotFound
from vllm_operator.kube.recent import Recent
from vllm_operator.planning.pinning import is_in_force

log = logging.getLogger(__name__)

KEPT_SECONDS, TROUBLE_SECONDS = 3600.0, 60.0
ANSWERS_LIMIT = 256
READERS = 8
"""Maximum number of files that are read concurrently."""
FAILURES = 3
"""Number of repositories for which the hub fails, without an answer in between, until it counts as down."""
DEFAULT_REVISION = "main"
_AWAY = HubAnswer(trouble="The model hub does not answer.")


class Question(NamedTuple):
    """A file of a repository. `token` is a namespace, Secret and key: no namespace gets a model through the token of another one."""

    repository: str
    revision: str
    is_adapter: bool
    token: tuple[str, str, str] | None


class _TokenError(Exception):
    """The token that the spec names cannot be read. `str()` is the reason."""


@dataclass(eq=False)
class ModelConfigs:
    """Reads model files, each at most once at a time."""

    client: ClusterClient
    hub: HttpHub
    _: KW_ONLY
    wait_seconds: float
    changed: Callable[[Key], None]
    """Called with each waiting key when the hub has answered or the time is over."""
    clock: Callable[[], float] = time.monotonic
    _answers: Recent[tuple[HubAnswer, float]] = field(default_factory=lambda: Recent(ANSWERS_LIMIT))
    """By Question: the answer, and until when it counts."""
    _tasks: dict[Question, asyncio.Task[None]] = field(default_factory=dict)
    _waiting: dict[Question, set[Key]] = field(default_factory=dict)
    _places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READERS))
    _failing: set[str] = field(default_factory=set)
    _down_until: float = 0.0

    def ask(self, resource: VLLMDeployment) -> HubAnswer | None:
        """Return the hub's answer about the model of this object; None if there is none yet. The current plan needs no answer."""
        questions = _questions(resource)
        if not questions:
            return HubAnswer()
        answers = {name: self._answer(question, resource) for name, question in questions.items()}
        found = {name: answer for name, answer in answers.items() if answer is not None}
        if len(found) < len(answers):
            return None
        of_model = found.pop(None, HubAnswer())
        return replace(of_model, adapters={name: files for name, files in found.items() if name})

    def _answer(self, question: Question, resource: VLLMDeployment) -> HubAnswer | None:
        answer, until = self._answers.get(question) or (None, 0.0)
        if answer is not None and until > self.clock():
            return answer
        if self.clock() < self._down_until:
            return _AWAY
        self._waiting.setdefault(question, set()).add((resource.metadata.namespace, resource.metadata.name))
        if question not in self._tasks:
            self._tasks[question] = asyncio.create_task(self._fetch(question), name=f"config.json of {question.repository}")
        return None

    async def close(self) -> None:
        """Cancel all requests and close all connections."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.hub.close()

    async def _fetch(self, question: Question) -> None:
        try:
            async with self._places:  # the time limit starts with the request, not while waiting for others
                if self.clock() >= self._down_until:
                    self._keep(question, await self._read(question))
        finally:
            self._tasks.pop(question, None)
            for key in self._waiting.pop(question, set()):  # also after a cancellation: they ask again
                self.changed(key)

    def _keep(self, question: Question, answer: HubAnswer) -> None:
        seconds = KEPT_SECONDS if answer.config is not None else TROUBLE_SECONDS
        self._answers.put(question, (answer, self.clock() + seconds))
        if answer.failed and len(self._failing) < FAILURES:
            self._failing.add(question.repository)
        elif answer.config is not None or answer.refused:
            self._failing.clear()
        if answer.unreachable or (answer.failed and len(self._failing) >= FAILURES):
            self._down_until = self.clock() + TROUBLE_SECONDS

    async def _read(self, question: Question) -> HubAnswer:
        is_asked = False
        try:
            async with asyncio.timeout(self.wait_seconds):
                token = await self._token(*question.token) if question.token is not None else None
                is_asked = True
                read = self.hub.read_adapter if question.is_adapter else self.hub.read
                return await read(question.repository, question.revision, token)
        except _TokenError as error:
            return HubAnswer(trouble=f"{error}, so config.json was not read.")
        except TimeoutError:
            return HubAnswer(trouble=f"The model hub did not answer within {self.wait_seconds:g} s.", failed=is_asked)
        except Exception as error:  # a plan without these facts is better than none
            log.exception("cannot read the config.json of %s", question.repository)
            return HubAnswer(trouble=f"The model hub could not be asked ({type(error).__name__}).")

    async def _token(self, namespace: str, secret: str, name: str) -> str:
        try:
            data = (await self.client.get(SECRET, secret, namespace)).get("data") or {}
        except Forbidden:
            raise _TokenError(f"The operator may not get the Secret {secret} in {namespace}") from None
        except NotFound:
            raise _TokenError(f"There is no Secret {secret} in {namespace}") from None
        except ClusterError:
            raise _TokenError(f"The Secret {secret} in {namespace} cannot be read now") from None
        with contextlib.suppress(binascii.Error, UnicodeDecodeError, ValueError, TypeError):
            token = base64.b64decode(data.get(name) or "", validate=True).decode("ascii").strip()
            if token and token.isprintable() and " " not in token:
                return token
        raise _TokenError(f"The Secret {secret} has no usable key {name}")


def _questions(resource: VLLMDeployment) -> dict[str | None, Question]:
    """Return the hub questions for a new plan: each adapter by name, and the model with the key None."""
    spec, plan = resource.spec, resource.pinned
    if plan is not None and is_in_force(plan, resource):
        return {}
    asked: list[tuple[str | None, ModelSpec | AdapterSpec]] = [(None, spec.model), *((each.name, each) for each in spec.adapters or ())]
    questions: dict[str | None, Question] = {}
    for name, each in asked:
        scheme, _, repository = each.uri.partition("://")
        secret = each.token_secret_ref or spec.model.token_secret_ref
        token = (resource.metadata.namespace, secret.name, secret.key) if secret is not None else None
        if scheme == "hf":
            questions[name] = Question(repository.rstrip("/"), each.revision or DEFAULT_REVISION, name is not None, token)
    return questions
