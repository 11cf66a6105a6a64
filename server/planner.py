"""From a conversation, in any dialect's words, to one engine request and the parser for its answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chat_templates.errors import TemplateError
from chat_templates.render import RenderedPrompt, render
from engine.client import EngineClient
from engine.grammar.check import CheckFailed
from engine.messages import GenerateReqInput, GrammarSpec
from engine.sampling_params import SamplingParams
from server import limits
from server.args import ServerArgs
from server.constrainer import Constrained, Constrainer, UnusableSchema
from server.constraints import FREE, ConstraintPlan, OutputShape, constraint
from server.dialect import ModelDialect, resolve_dialect
from server.errors import BadRequest, RequestTimeout, Unsupported
from server.prompts import encode, too_long
from server.tools import Tools
from toolcall import OutputParser
from toolcall.constraints import Reasoning
from toolcall.format import ReasoningFormat
from toolcall.ids import make_id_factory
from toolcall.reasoning import is_open
from toolcall.schema import ToolSet

_SUFFIX_CHARS = 512
"""As much of the rendered prompt's end as a parser may need to know its start state."""

_THINK_NAMES = ("enable_thinking", "thinking")
"""What templates call the switch: Qwen's and GLM's, then DeepSeek's, Kimi's and Granite's."""
_NOT_TEMPLATE_KWARGS = frozenset({"chat_template", "messages", "tools", "tokenize", "return_tensors", "return_dict"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What every chat-like endpoint asks for, whatever its dialect.

    messages: checked chat messages in OpenAI's form. size: bytes of the request, decides where to render.
    """

    messages: Sequence[Mapping[str, Any]]
    sampling: SamplingParams
    tools: Tools = field(default_factory=Tools)
    shape: OutputShape = FREE
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    separate_reasoning: bool = True
    tenant: str = ""
    priority: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One engine request and a fresh parser per choice. single_call: a choice ends with its first call.
    ends_itself: the grammar allows nothing after it, so that the engine need not be stopped at some token that happens
    to be the last one known. relaxations: what of the request's schemas is not enforced, one sentence each. custom:
    names of tools that take text (server/custom_tools.py)."""

    request: GenerateReqInput
    make_parser: Callable[[], OutputParser]
    single_call: bool
    ends_itself: bool = False
    relaxations: tuple[str, ...] = ()
    custom: frozenset[str] = frozenset()


class Planner:
    """Knows the model's dialect; resolved on first use, because the tokenizer may not be there when the app is."""

    def __init__(self, engine: EngineClient, args: ServerArgs, constrainer: Constrainer) -> None:
        self._engine = engine
        self._args = args
        self._constrainer = constrainer
        self._dialect: ModelDialect | None = None

    async def warm_up(self) -> None:
        """Start the grammar check process, so that the first request with tools does not wait for it."""
        with contextlib.suppress(UnusableSchema, CheckFailed):
            await self._constrainer.check(GrammarSpec(kind="regex", source="a"), "")

    async def close(self) -> None:
        """End the grammar check process."""
        await self._constrainer.close()

    @property
    def dialect(self) -> ModelDialect:
        if self._dialect is None:
            self._dialect = resolve_dialect(self._engine.tokenizer, self._args)
        return self._dialect

    async def plan(self, conversation: Conversation) -> Plan:
        """Raises ApiError for what cannot be rendered, constrained or compiled."""
        dialect = self.dialect
        prompt = await self.render(conversation)
        suffix = prompt_suffix(prompt.text, self._engine.tokenizer.eos_token)
        reasoning = dialect.reasoning
        state = reasoning_state(reasoning, suffix)
        opener = _markers(reasoning)[0] if state == "optional" else ""
        wanted = ConstraintPlan(
            format=dialect.format.name,
            tools=conversation.tools,
            shape=conversation.shape,
            reasoning=state,
            reasoning_markers=_markers(reasoning),
            policy=self._args.tool_grammar,
            rescue=self._args.tool_rescue,
        )
        constrained = await constraint(wanted, self._constrainer)
        request = GenerateReqInput(
            text=prompt.text,
            guard=prompt.guard,
            sampling=conversation.sampling,
            stop_after=_markers(reasoning)[1] if state == "open" or opener else "",
            stop_opener=opener,
            keep_special=dialect.keep_special,
            grammar=constrained.spec,
            tenant=conversation.tenant,
            priority=conversation.priority,
        )
        make_parser = self._parser_factory(conversation, suffix)
        single = bool(conversation.tools.declared) and not conversation.tools.parallel
        forced = constrained.spec is not None and conversation.tools.choice == "required"
        ends_itself = forced and not (conversation.sampling.ignore_eos or conversation.sampling.min_tokens)
        relaxations = (*conversation.tools.relaxations, *constrained.relaxations)
        return Plan(request, make_parser, single, ends_itself, relaxations, conversation.tools.custom)

    async def constrain_text(self, shape: OutputShape) -> Constrained:
        """The grammar of a text without calls and reasoning. Raises BadRequest."""
        return await constraint(ConstraintPlan(self.dialect.format.name, Tools(), shape), self._constrainer)

    def _parser_factory(self, conversation: Conversation, suffix: str) -> Callable[[], OutputParser]:
        tools = conversation.tools
        style = self.dialect.format.id_style
        calls = sum(len(message.get("tool_calls") or ()) for message in conversation.messages)
        declared = {tool["function"]["name"] for tool in tools.declared}
        callable_tools = ToolSet(tools.callable, refused=declared.difference(tools.names))

        def make() -> OutputParser:
            return OutputParser(
                self.dialect.format,
                callable_tools,
                reasoning=self.dialect.reasoning,
                separate_reasoning=conversation.separate_reasoning,
                prompt_suffix=suffix,
                tool_choice=tools.choice,
                parallel_tool_calls=tools.parallel,
                rescue=self._args.tool_rescue,
                id_factory=make_id_factory(style, calls),
            )

        return make

    async def count_tokens(self, conversation: Conversation) -> int:
        """Tokens of the prompt that this conversation makes; nothing is generated."""
        prompt = await self.render(conversation)
        return len(await encode(self._engine.tokenizer, prompt.text, guard=prompt.guard))

    async def render(self, conversation: Conversation) -> RenderedPrompt:
        """The prompt. Large conversations and clients' own templates are rendered in a worker thread, within
        RENDER_TIMEOUT."""
        chars = content_chars(conversation.messages)
        if chars > limits.MAX_PROMPT_CHARS:
            raise too_long(self._engine.model_info, f"your messages have {chars} characters", "messages")
        if conversation.template is None and conversation.size <= limits.RENDER_OFF_LOOP_CHARS:
            return self._render(conversation)
        try:
            async with asyncio.timeout(limits.RENDER_TIMEOUT):
                return await asyncio.to_thread(self._render, conversation)
        except TimeoutError:
            raise RequestTimeout("Rendering the chat template took too long.") from None

    def _render(self, conversation: Conversation) -> RenderedPrompt:
        tokenizer = self._engine.tokenizer
        try:
            return render(
                conversation.template or self.dialect.template,
                conversation.messages,
                conversation.tools.declared,
                add_generation_prompt=conversation.add_generation_prompt,
                continue_final_message=conversation.continue_final_message,
                special_tokens=tokenizer.special_tokens,
                kwargs=conversation.template_kwargs,
                bos_token=tokenizer.bos_token,
                eos_token=tokenizer.eos_token,
            )
        except TemplateError as exc:
            raise BadRequest(f"The messages cannot be rendered: {exc}", param=_bracketed(exc.param)) from None


def content_chars(messages: Sequence[Mapping[str, Any]]) -> int:
    """Characters of text in all messages, parts included."""
    total = 0
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            total += len(content)
        elif isinstance(content, list):
            total += sum(len(part["text"]) for part in content if isinstance(part.get("text"), str))
    return total


def _bracketed(param: str) -> str:
    """``messages.0.content`` as OpenAI writes it, ``messages[0].content``."""
    head, *rest = param.split(".")
    return head + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in rest)


def _markers(reasoning: ReasoningFormat | None) -> tuple[str, str]:
    if reasoning is None or not reasoning.closers:
        return "<think>", "</think>"
    return next(iter(reasoning.openers), ""), reasoning.closers[0]


def prompt_suffix(text: str, eos_token: str | None) -> str:
    """The end of a prompt, from the last end of a turn: what earlier turns thought says nothing about this one.
    ``text`` still holds its guards, so a client's own ``<think>`` does not count either."""
    tail = text[-_SUFFIX_CHARS:]
    return tail.rpartition(eos_token)[2] if eos_token else tail


def reasoning_state(reasoning: ReasoningFormat | None, suffix: str) -> Reasoning:
    """Where the prompt leaves the model: inside its reasoning, past it, or free to begin it."""
    if reasoning is None:
        return "none"
    if is_open(reasoning, suffix):
        return "open"
    closed = max((suffix.rfind(closer) for closer in reasoning.closers), default=-1)
    if closed >= 0 and not suffix[closed:].strip().partition("\n")[2].strip():
        return "none"
    return "none" if reasoning.starts_open else "optional"


def template_kwargs(
    kwargs: Mapping[str, Any] | None, effort: str | None = None, think: bool | None = None
) -> dict[str, Any]:
    """``chat_template_kwargs`` and ``reasoning_effort``, checked; the template decides which names it reads. think:
    whether the model is asked to, in the dialect's own words; kwargs that say so themselves win."""
    param, given = "chat_template_kwargs", dict(kwargs or {})
    if len(given) > limits.MAX_TEMPLATE_KWARGS:
        raise BadRequest(f"'{param}' holds more than {limits.MAX_TEMPLATE_KWARGS} names.", param=param)
    for name, value in given.items():
        if name in _NOT_TEMPLATE_KWARGS:
            raise Unsupported(f"{param}.{name[:64]}")
        if value is not None and not isinstance(value, (str, int, float, bool)):
            raise BadRequest(f"'{param}.{name[:64]}' must be a string, number, boolean or null.", param=param)
        if isinstance(value, str) and len(value) > limits.MAX_TEMPLATE_KWARG_CHARS:
            raise BadRequest(f"'{param}.{name[:64]}' is too long.", param=param)
    if effort is not None:
        given.setdefault("reasoning_effort", effort)
    if think is None and effort == "none":
        think = False
    if think is not None and given.keys().isdisjoint(_THINK_NAMES):
        given |= dict.fromkeys(_THINK_NAMES, think)
    return given
