"""Everything that crosses a process boundary, as msgspec tagged unions in MessagePack.

Flow of one request::

    server --GenerateReqInput--> TokenizerManager --TokenizedGenerateReqInput--> Scheduler
    Scheduler --BatchTokenIDOut--> DetokenizerManager --BatchStrOut--> TokenizerManager --GenerateOutput--> server

A request ends exactly once: the last row of its rid carries a FinishReason. Nothing here imports torch.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from engine.sampling_params import SamplingParams

FinishType = Literal["stop", "length", "abort", "error"]


class FinishReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request ended.

    type: ``stop`` (eos, stop token or stop string), ``length`` (max_tokens or context), ``abort`` (client
    left or asked), ``error`` (the request failed; ``message`` is safe to show to the client).
    matched: the stop string or token id that ended it, None for eos.
    """

    type: FinishType
    matched: str | int | None = None
    message: str = ""
    status: int = 200
    """HTTP status for ``error``: 4xx where the request was at fault, 503 where the engine was."""


class GrammarSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A constraint in a form that every grammar backend can compile; checked before it is sent.

    kind: ``lark`` (llguidance's Lark dialect), ``json_schema``, ``regex``, ``ebnf``, ``choice``.
    source: the grammar's text (JSON text for ``json_schema`` and ``choice``).
    triggers: where not empty, text is free until one of these strings has been written, then the grammar
    holds (``auto`` tool choice). triggers_at_start: the same for strings that count only where a call may stand
    without its format's marker: at the beginning, after another call or after ``restart_after`` (the end of
    reasoning), white space, fences and the like aside. start_after: where not empty, the grammar sleeps until
    this text has been written (end of reasoning).
    """

    kind: Literal["lark", "json_schema", "regex", "ebnf", "choice"]
    source: str
    triggers: tuple[str, ...] = ()
    triggers_at_start: tuple[str, ...] = ()
    restart_after: str = ""
    start_after: str = ""


class TopLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    token_id: int
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probability (natural log, finite) of one generated token, with the best alternatives, best first."""

    token_id: int
    logprob: float
    top: tuple[TopLogprob, ...] = ()


# ---------------------------------------------------------------- server -> TokenizerManager


class GenerateReqInput(msgspec.Struct, frozen=True, kw_only=True):
    """One generation as an endpoint asks for it: ``text`` or ``input_ids``, never both.

    guard: a string that the renderer put inside special-token spellings in user text so that they do not
    become special ids; removed before encoding (see chat_templates.render).
    stop_after: stop strings count only after this text (the end of reasoning) was written; "" = at once.
    stop_opener: where not empty, stop_after is waited for only by text that begins with this.
    tenant: cache namespace; requests of different tenants never share prefix pages.
    keep_special: special tokens that stay in the text although skip_special_tokens is on (tool markers).
    """

    text: str | None = None
    input_ids: tuple[int, ...] | None = None
    sampling: SamplingParams = SamplingParams()
    guard: str = ""
    add_special_tokens: bool = False
    stop_after: str = ""
    stop_opener: str = ""
    keep_special: tuple[str, ...] = ()
    grammar: GrammarSpec | None = None
    tenant: str = ""
    priority: int = 0
    prompt_logprobs: bool = False


class _NewTokens(msgspec.Struct, frozen=True, kw_only=True):
    """What comes of one choice at a time, from the scheduler to the client. The last of a choice has finish_reason."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    """Logprobs of prompt tokens 1.., sent once, only where GenerateReqInput.prompt_logprobs asked."""
    finish_reason: FinishReason | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


class GenerateOutput(_NewTokens, frozen=True, kw_only=True):
    """A delta of one choice. text: printable text since the last delta, no half characters, stop strings removed."""

    index: int
    text: str = ""


# ---------------------------------------------------------------- TokenizerManager -> Scheduler


class TokenizedGenerateReqInput(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """``sampling.max_tokens`` is a number here and ``sampling.n`` is 1: the TokenizerManager made it so."""

    rid: str
    input_ids: tuple[int, ...]
    sampling: SamplingParams
    decode: DecodeParams
    grammar: GrammarSpec | None = None
    tenant: str = ""
    priority: int = 0
    prompt_logprobs: bool = False


class DecodeParams(msgspec.Struct, frozen=True, kw_only=True):
    """What the detokenizer must know about a request; it travels with the first BatchTokenIDOut row."""

    skip_special_tokens: bool = True
    keep_special: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    stop_after: str = ""
    stop_opener: str = ""
    min_tokens: int = 0


class EmbedReqInput(msgspec.Struct, frozen=True, kw_only=True, tag="embed"):
    """Mean-pooled, L2-normalised last hidden state of the prompt."""

    rid: str
    input_ids: tuple[int, ...]
    tenant: str = ""


class AbortReq(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """End this request. From the client side: reason abort. From the detokenizer: a stop string was met."""

    rid: str
    stop_matched: str | None = None


class FlushCacheReq(msgspec.Struct, frozen=True, kw_only=True, tag="flush"):
    rid: str


class StatsReq(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    rid: str


SchedulerInput = TokenizedGenerateReqInput | EmbedReqInput | AbortReq | FlushCacheReq | StatsReq


# ---------------------------------------------------------------- Scheduler -> Detokenizer -> TokenizerManager


class TokenIDRow(_NewTokens, frozen=True, kw_only=True):
    """New tokens of one request after one step. ``decode`` is set on a request's first row only."""

    rid: str
    decode: DecodeParams | None = None


class BatchTokenIDOut(msgspec.Struct, frozen=True, kw_only=True, tag="token_ids"):
    rows: tuple[TokenIDRow, ...]


class StrRow(_NewTokens, frozen=True, kw_only=True):
    rid: str
    text: str = ""


class BatchStrOut(msgspec.Struct, frozen=True, kw_only=True, tag="strings"):
    rows: tuple[StrRow, ...]


class EmbedOut(msgspec.Struct, frozen=True, kw_only=True, tag="embedding"):
    rid: str
    embedding: tuple[float, ...]
    prompt_tokens: int


class ControlReply(msgspec.Struct, frozen=True, kw_only=True, tag="control"):
    rid: str
    ok: bool
    message: str = ""


class SchedulerStats(msgspec.Struct, frozen=True, kw_only=True, tag="stats_out"):
    """A snapshot for /metrics and readiness. ``step`` grows while the engine makes progress."""

    rid: str = ""
    step: int = 0
    running: int = 0
    waiting: int = 0
    memory_full: bool = False
    """The first of those that wait has no pages."""
    free_pages: int = 0
    cached_pages: int = 0
    total_pages: int = 0
    page_size: int = 0
    preemptions: int = 0
    cache_query_tokens: int = 0
    cache_hit_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    generated_tokens: int = 0
    prefill_tokens: int = 0
    forced_tokens: int = 0
    grammar_rows: int = 0
    leaked_pages: int = 0


SchedulerOutput = BatchTokenIDOut | EmbedOut | ControlReply | SchedulerStats
DetokenizerOutput = BatchStrOut | EmbedOut | ControlReply | SchedulerStats


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The readiness handshake: what the model process found out while loading."""

    model_path: str
    served_name: str
    architecture: str
    context_length: int
    vocab_size: int
    """Width of the logits, which may exceed the tokenizer's length."""
    eos_token_ids: tuple[int, ...]
    kv_capacity_tokens: int
    max_running_requests: int
    device: str
    dtype: str
    quantization: str = "none"
    runner: str = "torch"
    created: int = 0
    embedding_size: int = 0
