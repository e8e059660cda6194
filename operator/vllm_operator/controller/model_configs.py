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
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from vllm_operator.api.operation import SecretKeyReference
from vllm_operator.api.resource import VLLMDeployment
from vllm_operator.api.spec import AdapterSpec, ModelSpec
from vllm_operator.hub.client import HttpHub, HubAnswer
from vllm_operator.kube.client import SECRET, ClusterClient, ClusterError, Forbidden, Key, NotFound
from vllm_operator.planning.pinning import is_in_force
from vllm_operator.sizing.model_facts import AdapterFiles

log = logging.getLogger(__name__)

Question = tuple[str, str, bool, str | None, str | None, str | None]
"""Repository, revision, and whether it is a LoRA adapter; with a token also namespace, Secret and key, so that no namespace gets a
model through the token of another one."""

KEPT_SECONDS, TROUBLE_SECONDS = 3600.0, 60.0
ANSWERS_LIMIT = 256
READERS = 8
"""Maximum number of files that are read concurrently."""
FAILURES = 3
"""Number of repositories for which the hub fails, without an answer in between, until it counts as down."""
DEFAULT_REVISION = "main"
_AWAY = HubAnswer(trouble="The model hub does not answer.")


@dataclass(frozen=True, slots=True)
class _Kept:
    answer: HubAnswer
    until: float


class ModelConfigs:
    """Reads model files, each at most once at a time."""

    def __init__(
        self,
        client: ClusterClient,
        hub: HttpHub,
        *,
        wait_seconds: float,
        changed: Callable[[Key], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Initialize. `changed` is called with each waiting key when the hub has answered or the time is over."""
        self._client = client
        self._hub = hub
        self._wait = wait_seconds
        self._changed = changed
        self._clock = clock
        self._answers: OrderedDict[Question, _Kept] = OrderedDict()
        self._tasks: dict[Question, asyncio.Task[None]] = {}
        self._waiting: dict[Question, set[Key]] = {}
        self._places = asyncio.Semaphore(READERS)
        self._failing: set[str] = set()
        self._down_until = 0.0

    def ask(self, resource: VLLMDeployment) -> HubAnswer | None:
        """Return the hub's answer about the model of this object; None if there is none yet.

        The hub is asked only for new plans, not for a plan in force.
        """
        questions = _questions(resource)
        if not questions:
            return HubAnswer()
        answers = {name: self._answer(question, resource) for name, question in questions.items()}
        found = {name: answer for name, answer in answers.items() if answer is not None}
        if len(found) < len(answers):
            return None
        of_model = found.pop(None, HubAnswer())
        return replace(of_model, adapters={name: AdapterFiles(it.config, it.trouble, it.refused) for name, it in found.items() if name})

    def _answer(self, question: Question, resource: VLLMDeployment) -> HubAnswer | None:
        kept = self._answers.get(question)
        if kept is not None and kept.until > self._clock():
            return kept.answer
        if self._clock() < self._down_until:
            return _AWAY
        self._waiting.setdefault(question, set()).add((resource.metadata.namespace, resource.metadata.name))
        if question not in self._tasks:
            self._tasks[question] = asyncio.create_task(self._fetch(question), name=f"config.json of {question[0]}")
        return None

    async def close(self) -> None:
        """Cancel all requests and close all connections."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._hub.close()

    async def _fetch(self, question: Question) -> None:
        try:
            async with self._places:  # the time limit starts with the request, not while waiting for others
                is_down = self._clock() < self._down_until
                answer = _AWAY if is_down else await self._bounded(question)
            if not is_down:
                self._keep(question, answer)
        finally:
            self._tasks.pop(question, None)
            for key in self._waiting.pop(question, set()):  # also after a cancellation: they ask again
                self._changed(key)

    def _keep(self, question: Question, answer: HubAnswer) -> None:
        seconds = KEPT_SECONDS if answer.config is not None else TROUBLE_SECONDS
        self._answers[question] = _Kept(answer, self._clock() + seconds)
        while len(self._answers) > ANSWERS_LIMIT:
            self._answers.popitem(last=False)
        if answer.failed and len(self._failing) < FAILURES:
            self._failing.add(question[0])
        elif answer.config is not None or answer.refused:
            self._failing.clear()
        if answer.unreachable or (answer.failed and len(self._failing) >= FAILURES):
            self._down_until = self._clock() + TROUBLE_SECONDS

    async def _bounded(self, question: Question) -> HubAnswer:
        token: str | HubAnswer | None = None
        is_asked = False
        try:
            async with asyncio.timeout(self._wait):
                token = await self._token_of(question)
                if isinstance(token, HubAnswer):
                    return token
                is_asked = True
                read = self._hub.read_adapter if question[2] else self._hub.read
                return await read(question[0], question[1], token)
        except TimeoutError:
            return HubAnswer(trouble=f"The model hub did not answer within {self._wait:g} s.", failed=is_asked)
        except Exception as error:  # a plan without these facts is better than none
            log.exception("cannot read the config.json of %s", question[0])
            return HubAnswer(trouble=f"The model hub could not be asked ({type(error).__name__}).")

    async def _token_of(self, question: Question) -> str | HubAnswer | None:
        """Return the token for a model, None if the spec names none, or a message if the named token cannot be read."""
        _, _, _, namespace, secret, name = question
        if not (namespace and secret and name):
            return None
        try:
            token = await self._token(namespace, secret, name)
        except ClusterError as error:
            return HubAnswer(trouble=_about_secret(error, namespace, secret))
        return token or HubAnswer(trouble=f"The Secret {secret} has no usable key {name}, so config.json was not read.")

    async def _token(self, namespace: str, secret: str, name: str) -> str | None:
        data = (await self._client.get(SECRET, secret, namespace)).get("data") or {}
        with contextlib.suppress(binascii.Error, UnicodeDecodeError, ValueError, TypeError):
            token = base64.b64decode(data.get(name) or "", validate=True).decode("ascii").strip()
            return token if token.isprintable() and token and " " not in token else None
        return None


def _questions(resource: VLLMDeployment) -> dict[str | None, Question]:
    """Return the hub questions for a new plan: each adapter by name, and the model with the key None."""
    spec, plan = resource.spec, resource.pinned
    if plan is not None and is_in_force(plan, resource):
        return {}
    asked: list[tuple[str | None, ModelSpec | AdapterSpec]] = [(None, spec.model), *((each.name, each) for each in spec.adapters or ())]
    questions: dict[str | None, Question] = {}
    for name, each in asked:
        scheme, _, repository = each.uri.partition("://")
        if scheme == "hf":
            secret = _secret(resource, each.token_secret_ref or spec.model.token_secret_ref)
            questions[name] = (repository.rstrip("/"), each.revision or DEFAULT_REVISION, name is not None, *secret)
    return questions


def _secret(resource: VLLMDeployment, reference: SecretKeyReference | None) -> tuple[str | None, str | None, str | None]:
    return (resource.metadata.namespace, reference.name, reference.key) if reference else (None, None, None)


def _about_secret(error: ClusterError, namespace: str, secret: str) -> str:
    if isinstance(error, Forbidden):
        return f"The operator may not get the Secret {secret} in {namespace}, so config.json was not read."
    if isinstance(error, NotFound):
        return f"There is no Secret {secret} in {namespace}, so config.json was not read."
    return f"The Secret {secret} in {namespace} cannot be read now, so config.json was not read."
