"""The sections of docs/api.md on /v1/responses and /v1/messages name every field that the code knows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anthropic.types.beta.message_create_params import MessageCreateParamsBase
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase
from openai.types.embedding_create_params import EmbeddingCreateParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from server.anthropic import fields as messages
from server.anthropic.types import MessagesRequest
from server.llama_cpp import fields as llama_cpp
from server.llama_cpp.types import InfillRequest
from server.ollama import fields as ollama
from server.ollama import types as ollama_types
from server.openai import fields as chat
from server.openai.responses import fields as responses
from server.openai.types.chat import ChatCompletionRequest
from server.openai.types.completions import CompletionRequest
from server.openai.types.embeddings import EmbeddingRequest
from server.openai.types.responses import ResponsesRequest

TEXT = (Path(__file__).parent.parent.parent / "docs" / "api.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("route", "kind", "ignored", "refused"),
    [
        ("/v1/responses", ResponsesRequest, responses.IGNORED, responses.REFUSED),
        ("/v1/messages", MessagesRequest, messages.IGNORED, messages.REFUSED),
    ],
)
def test_every_field_has_its_answer(
    route: str, kind: Any, ignored: Mapping[str, str], refused: Mapping[str, Any]
) -> None:
    section = TEXT.partition(f"\n## `POST {route}`")[2].partition("\n## ")[0]
    head, _, tail = section.partition("\nWithout effect:")
    table, _, last = tail.partition("\nAnswered with a 400")
    named = head.rpartition("Supported fields:")[2]
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        assert f"`{name}`" in named or name in ignored or name in refused, name
    for name, why in ignored.items():
        assert f"| `{name}` | {why} |" in table
    for name in refused:
        assert f"`{name}`" in last
    assert not ignored.keys() & refused.keys()


@pytest.mark.parametrize(
    ("params", "kind", "known"),
    [
        (ChatParams, ChatCompletionRequest, {*chat.IGNORED, *chat.REFUSED}),
        (CompletionCreateParamsBase, CompletionRequest, {*chat.IGNORED, *chat.COMPLETIONS_REFUSED}),
        (EmbeddingCreateParams, EmbeddingRequest, ()),
        (ResponseCreateParamsBase, ResponsesRequest, {*responses.IGNORED, *responses.REFUSED, *chat.REFUSED}),
        (MessageCreateParamsBase, MessagesRequest, {*messages.IGNORED, *messages.REFUSED}),
    ],
)
def test_every_field_of_the_sdk_is_known(params: Any, kind: Any, known: Any) -> None:
    """Supported, without effect, or refused: nothing that the dialect's own SDK can send is ignored unawares."""
    supported = {field.encode_name for field in msgspec.structs.fields(kind)}
    asked = params.__annotations__.keys()
    assert len(asked) > 4
    assert asked - supported - set(known) == set()


VLLM = """add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template
chat_template_kwargs continue_final_message documents echo ec_transfer_params frequency_penalty ignore_eos
include_reasoning include_stop_str_in_output kv_transfer_params length_penalty logit_bias logprob_token_ids logprobs
logits_processors max_completion_tokens max_tokens media_io_kwargs min_p min_tokens mm_payload mm_processor_kwargs n
parallel_tool_calls presence_penalty priority prompt_logprobs reasoning_effort repetition_detection repetition_penalty
request_id response_format return_mm_kwargs return_prompt_text return_token_ids return_token_offsets
return_tokens_as_token_ids routed_experts_prompt_start seed session_id skip_special_tokens
spaces_between_special_tokens stop stop_token_ids stream_interval stream_options structured_outputs temperature
thinking_token_budget tool_choice tools top_k top_logprobs top_p truncate_prompt_tokens truncation_side
use_beam_search user vllm_xargs watermarking"""
"""What vLLM 0.32 reads of a chat request."""


def test_every_field_of_vllm_is_known() -> None:
    supported = {field.encode_name for field in msgspec.structs.fields(ChatCompletionRequest)}
    assert set(VLLM.split()) - supported - {*chat.IGNORED, *chat.REFUSED} == set()


OLLAMA = (ollama_types.ChatRequest, ollama_types.GenerateRequest, ollama_types.EmbedRequest, ollama_types.ShowRequest)


@pytest.mark.parametrize(
    ("title", "kinds", "ignored", "refused"),
    [
        ("Ollama's API", OLLAMA, ollama.IGNORED, ollama.REFUSED),
        ("llama.cpp's API", (InfillRequest,), llama_cpp.IGNORED, llama_cpp.REFUSED),
    ],
)
def test_fields_of_other_apis_have_their_answers(
    title: str, kinds: Any, ignored: Mapping[str, str], refused: Mapping[str, Any]
) -> None:
    section = TEXT.partition(f"\n## {title}")[2].partition("\n## ")[0]
    head, _, tail = section.partition("\nWithout effect:")
    table, _, last = tail.partition("\nAnswered with a 400")
    named = head.rpartition("Supported fields:")[2]
    for kind in kinds:
        for field in msgspec.structs.fields(kind):
            assert f"`{field.encode_name}`" in named
    for name, why in ignored.items():
        assert f"| `{name}` | {why} |" in table
    for name in refused:
        assert f"`{name}`" in last
