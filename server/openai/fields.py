"""Our answer to request fields that other servers know: supported, ignored as documented, or a 400 naming it.

docs/api.md prints these tables; a test keeps the two together.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from server.errors import Unsupported
from server.fields import refuse

IGNORED: Mapping[str, str] = MappingProxyType(
    {
        "service_tier": "there is one tier",
        "store": "chat answers are not stored",
        "metadata": "checked, not kept",
        "user": "checked, not kept",
        "safety_identifier": "not kept",
        "prompt_cache_key": "the prefix cache needs no hint",
        "prompt_cache_options": "the prefix cache needs no hint",
        "prompt_cache_retention": "the prefix cache needs no hint",
        "verbosity": "the model has no such control",
        "prediction": "a hint for speed; drafts come from the prompt",
        "include": "no such parts on this endpoint",
        "client_metadata": "not kept",
        "request_id": "ids are made by the server; X-Client-Request-Id is echoed",
        "rid": "ids are made by the server",
        "include_stop_str_in_output": "false is the only behaviour; true is refused",
        "spaces_between_special_tokens": "text is decoded as the tokenizer says",
        "add_special_tokens": "the chat template writes special tokens",
        "stream_reasoning": "reasoning is always streamed as it comes",
        "return_tokens_as_token_ids": "false is the only behaviour; true is refused",
        "use_beam_search": "false is the only behaviour; true is refused",
        "best_of": "1 is the only value on chat",
        "length_penalty": "beam search only",
        "early_stopping": "beam search only",
        "data_parallel_rank": "one data-parallel rank",
        "media_io_kwargs": "no media are read",
        "mm_payload": "no media are read",
        "return_mm_kwargs": "no media are read",
        "routed_experts_prompt_start": "only with return_routed_experts",
        "session_id": "not kept",
        "stream_interval": "chunks come as they are made",
        "truncation_side": "only with truncate_prompt_tokens",
    }
)
"""Fields that change nothing in the answer."""

REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "audio": (),
        "modalities": (["text"],),
        "web_search_options": (),
        "moderation": (),
        "thread": (),
        "bad_words": ([],),
        "allowed_token_ids": (),
        "truncate_prompt_tokens": (-1,),
        "prompt_logprobs": (False,),
        "logits_processors": ([],),
        "custom_logit_processor": (),
        "custom_params": ({},),
        "mm_processor_kwargs": ({},),
        "kv_transfer_params": (),
        "documents": ([],),
        "echo": (False,),
        "use_beam_search": (False,),
        "include_stop_str_in_output": (False,),
        "no_stop_trim": (False,),
        "return_tokens_as_token_ids": (False,),
        "return_hidden_states": (False,),
        "return_routed_experts": (False,),
        "stop_regex": ([], ""),
        "lora_path": ("",),
        "session_params": (),
        "input_ids": (),
        "input_embeds": (),
        "prompt_embeds": (),
        "image_data": (),
        "bootstrap_host": (),
        "bootstrap_port": (),
        "bootstrap_room": (),
        "extra_key": ("",),
        "vllm_xargs": ({},),
        "thinking_token_budget": (),
        "repetition_detection": (),
        "logprob_token_ids": ([],),
        "return_token_offsets": (False,),
        "return_prompt_text": (False,),
        "watermarking": (False,),
        "ec_transfer_params": (),
    }
)
"""Fields that would change the answer and are not implemented, with the values that mean "off". null is always off."""

GRAMMAR_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "guided_json": "json",
        "guided_regex": "regex",
        "guided_choice": "choice",
        "guided_grammar": "grammar",
        "grammar": "grammar",
        "regex": "regex",
        "ebnf": "grammar",
        "json_schema": "json",
    }
)
"""``structured_outputs`` as vLLM (guided_*), llama.cpp (grammar) and SGLang (regex, ebnf, json_schema) spell it."""


COMPLETIONS_REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {name: off for name, off in REFUSED.items() if name != "echo"}
    | {
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "functions": ([],),
        "function_call": ("none", "auto"),
    }
)
"""The same for POST /v1/completions, which knows neither messages nor tools."""


EMBEDDINGS_REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "truncate_prompt_tokens": (-1,),
        "messages": (),
        "embed_dtype": ("float32",),
        "endianness": ("native", "little"),
        "use_activation": (True,),
        "normalize": (True,),
        "padding": ("do_not_pad",),
    }
)
"""The same for POST /v1/embeddings."""


def refuse_unsupported(body: Mapping[str, Any]) -> None:
    """The refusals of chat."""
    refuse(body, REFUSED)
    if body.get("best_of") not in (None, 1):
        raise Unsupported("best_of", "best_of is not supported on this endpoint; use n.")
