"""llama.cpp's fields in the words that the endpoints share, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from engine.messages import ModelInfo
from engine.sampling_params import SamplingParams
from server.constraints import FREE, OutputShape, parse_constraint
from server.errors import BadRequest, invalid
from server.llama_cpp.types import CompletionRequest, InfillRequest
from server.openai.sampling import sampling_params
from server.param_names import renamed
from server.sampling_options import option_name, read_options

IGNORED: Mapping[str, str] = MappingProxyType(
    {
        "cache_prompt": "prefixes are always cached",
        "id_slot": "a request is given a row of the batch as one is free",
        "n_cache_reuse": "nothing is shifted",
        "n_discard": "nothing is dropped; too long a prompt is a 400",
        "n_keep": "nothing is dropped; too long a prompt is a 400",
        "repeat_last_n": "penalties look at the whole text",
        "return_progress": "not told",
        "samplers": "the order of samplers is fixed",
        "sse_ping_interval": "the server's own",
        "t_max_prompt_ms": "a prompt is computed to its end",
        "timings_per_token": "told at the end",
    }
)
REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "dry_multiplier": (0,),
        "dynatemp_range": (0,),
        "image_data": ([],),
        "lora": ([],),
        "mirostat": (0,),
        "multimodal_data": ([],),
        "n_cmpl": (1,),
        "post_sampling_probs": (False,),
        "top_n_sigma": (-1, 0),
        "typical_p": (1,),
        "xtc_probability": (0,),
    }
)
"""Fields that would change the answer, with the values that mean "off". null is always off."""

DEFAULTS: Mapping[str, Any] = MappingProxyType({"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05})
"""What its server takes where a request says nothing."""
_INFILL_TEMPERATURE = 0
"""Its sampler for filling in all but takes the most likely token."""
_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **{name: name for name in ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty")},
        **{name: name for name in ("seed", "stop", "ignore_eos", "logit_bias")},
        "repeat_penalty": "repetition_penalty",
        "n_predict": "max_tokens",
    }
)
_NEVER = -100.0
"""The bias of a token that may not come."""


def read_sampling(asked: CompletionRequest, info: ModelInfo, stop_token_ids: tuple[int, ...] = ()) -> SamplingParams:
    """Raises ApiError or InvalidParam naming the field."""
    given = msgspec.structs.asdict(asked) | {"logit_bias": _logit_bias(asked.logit_bias)}
    if isinstance(asked, InfillRequest) and asked.temperature is None:
        given["temperature"] = _INFILL_TEMPERATURE
    given = {name: DEFAULTS.get(name) if value is None else value for name, value in given.items()}
    wanted = asked.n_probs or 0
    if asked.n_predict == 0:
        given["n_predict"] = 1  # the least that computes a prompt
    with renamed(lambda param: "n_probs" if param == "top_logprobs" else option_name(param, _NAMES) or param):
        fields = read_options(given, _NAMES)
        params = sampling_params(fields, info, max_tokens=fields.max_tokens, logprobs=wanted > 0, top_logprobs=wanted)
    return msgspec.structs.replace(params, stop_token_ids=stop_token_ids)


def _logit_bias(given: Any) -> dict[str, Any] | None:
    """``[[id, bias], …]`` as an object; false is a token that may not come."""
    if given is None:
        return None
    if isinstance(given, list):
        if not all(isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int for pair in given):
            raise invalid("logit_bias", "pairs of a token id and a number are expected")
        given = {str(token): bias for token, bias in given}
    return {token: _NEVER if bias is False else bias for token, bias in given.items()}


def read_shape(asked: CompletionRequest) -> OutputShape:
    """An empty grammar is none, as in llama.cpp."""
    if asked.grammar and asked.json_schema is not None:
        raise BadRequest("'grammar' and 'json_schema' exclude each other.", param="json_schema")
    if asked.json_schema is not None:
        return parse_constraint("json", asked.json_schema, "json_schema")
    return parse_constraint("grammar", asked.grammar, "grammar") if asked.grammar else FREE
