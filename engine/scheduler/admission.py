"""From a message to a Req: the engine's own check of everything that a request says about itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.grammar.interface import GrammarBackend
from engine.messages import AbortReq, DecodeParams, EmbedReqInput, SchedulerInput, TokenizedGenerateReqInput
from engine.sampling.state import SamplingState
from engine.sampling_params import InvalidParam, validate_sampling_params
from engine.scheduler.req import Req
from engine.speculative.drafter import Drafters

MAX_PROMPT_LOGPROBS = 3_000_000
"""Of a prompt, alternatives included: they travel in one message (engine.ipc.MAX_MESSAGE_BYTES), 16 bytes each."""


class Rejected(Exception):
    """The request ends before it starts; the message is for the client."""


class Admitter:
    """Builds requests. ``context`` is the longest sequence, prompt and output, that this engine can hold."""

    def __init__(
        self,
        *,
        context: int,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        grammar: GrammarBackend | None,
        drafters: Drafters,
        random_seed: Callable[[], int],
    ) -> None:
        self.context = context
        self._vocab_size = vocab_size
        self._eos = tuple(eos_token_ids)
        self._grammar = grammar
        self._drafters = drafters
        self._random_seed = random_seed
        self.new_grammars = 0
        """How many more may be compiled in this step."""

    def puts_off(self, message: SchedulerInput, put_off: Sequence[SchedulerInput]) -> bool:
        """Grammars beyond ``new_grammars`` wait for the next step, and so does what ends them."""
        if isinstance(message, AbortReq):
            return any(other.rid == message.rid for other in put_off)
        if not isinstance(message, TokenizedGenerateReqInput) or message.grammar is None or self._grammar is None:
            return False
        if self._grammar.is_compiled(message.grammar):
            return False
        self.new_grammars -= 1
        return self.new_grammars < 0

    def generate(self, message: TokenizedGenerateReqInput, arrival: int) -> Req:
        """Raises Rejected and GrammarError; any other exception is this request's 500."""
        params = message.sampling
        tokens = self._tokens(message.input_ids, room=1)
        try:
            validate_sampling_params(params, self._vocab_size)
        except InvalidParam as error:
            raise Rejected(str(error)) from None
        if message.prompt_logprobs and len(tokens) * (1 + params.top_logprobs) > MAX_PROMPT_LOGPROBS:
            raise Rejected(f"Logprobs of a prompt of {len(tokens)} tokens are too many with so many alternatives each.")
        wanted = self.context if params.max_tokens is None else len(tokens) + params.max_tokens
        req = Req(message.rid, tokens, max_len=min(wanted, self.context), arrival=arrival, priority=message.priority)
        seed = self._random_seed() if params.seed is None else params.seed
        req.sampling = SamplingState(params, seed=seed, eos=self._eos, prompt=tokens)
        req.tenant = message.tenant
        req.decode = message.decode
        req.prompt_logprobs = message.prompt_logprobs
        req.drafter = self._drafters.new(req.tokens, req.tenant)
        if message.grammar is not None:
            self._constrain(req, message)
        return req

    def embed(self, message: EmbedReqInput, arrival: int) -> Req:
        tokens = self._tokens(message.input_ids, room=0)
        req = Req(message.rid, tokens, max_len=len(tokens), arrival=arrival)
        req.tenant = message.tenant
        req.decode = DecodeParams()
        return req

    def _tokens(self, ids: Sequence[int], room: int) -> list[int]:
        if not ids:
            raise Rejected("The prompt is empty.")
        if len(ids) + room > self.context:
            raise Rejected(
                f"This model's maximum context length is {self.context} tokens. However, your prompt has "
                f"{len(ids)} tokens. Please reduce the length of the prompt."
            )
        if min(ids) < 0 or max(ids) >= self._vocab_size:
            raise Rejected(f"Token ids must lie between 0 and {self._vocab_size - 1}.")
        return list(ids)

    def _constrain(self, req: Req, message: TokenizedGenerateReqInput) -> None:
        if self._grammar is None or message.grammar is None:
            raise Rejected("This engine was started without a grammar backend.")
        req.grammar = self._grammar.matcher(self._grammar.compile(message.grammar))
