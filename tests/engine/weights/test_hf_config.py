from __future__ import annotations

import pytest

from engine.weights.errors import WeightsError
from engine.weights.hf_config import config_from_hf
from tests.engine.weights.files import CONFIG


def parse(**changes):
    return config_from_hf({**CONFIG, **changes}, "config.json")


def test_llama():
    config = parse()
    assert (config.architecture, config.head_dim, config.num_kv_heads) == ("llama", 8, 2)
    assert (config.q_size, config.kv_size) == (32, 16)
    assert (config.qkv_bias, config.o_bias, config.qk_norm) == (False, False, False)
    assert config.tie_word_embeddings


def test_what_each_architecture_adds():
    qwen2 = parse(model_type="qwen2", architectures=["Qwen2ForCausalLM"])
    assert qwen2.qkv_bias
    assert not qwen2.o_bias
    qwen3 = parse(model_type="qwen3", architectures=["Qwen3ForCausalLM"], head_dim=16, tie_word_embeddings=None)
    assert qwen3.qk_norm
    assert not qwen3.qkv_bias
    assert (qwen3.head_dim, qwen3.tie_word_embeddings) == (16, False)
    assert parse(attention_bias=True).o_bias
    assert parse(num_key_value_heads=None).num_kv_heads == 4


def test_yarn_lengthens_the_context():
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert parse(rope_scaling=yarn).max_positions == 512
    assert parse(rope_scaling={**yarn, "rope_type": "linear"}).max_positions == 128


def test_remote_code_is_ignored():
    assert parse(auto_map={"AutoModelForCausalLM": "modeling.Evil"}) == parse()


@pytest.mark.parametrize("name", ["gpt2", "mixtral", "qwen2_moe", "", None, 3, ["llama"]])
def test_unknown_architectures_name_the_known_ones(name):
    with pytest.raises(WeightsError, match=r"not supported; supported are .*qwen2.*qwen3.*llama"):
        parse(model_type=name, architectures=None)


def test_other_heads_than_causal_lm_are_refused():
    with pytest.raises(WeightsError, match="LlamaForSequenceClassification"):
        parse(architectures=["LlamaForSequenceClassification"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "32"}, "expected an integer"),
        ({"num_hidden_layers": True}, "expected an integer"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
        ({"vocab_size": -1}, "vocab_size"),
        ({"num_key_value_heads": 3}, "cannot share"),
        ({"num_attention_heads": 0}, "num_heads is 0"),
        ({"head_dim": 7}, "odd"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
        ({"rms_norm_eps": "x"}, "expected a number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"use_sliding_window": True}, "sliding"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic.* is not supported.*yarn"),
        ({"rope_scaling": {"type": ["yarn"]}}, "not supported"),
        ({"rope_scaling": [1]}, "not an object"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, "factor"),
        ({"rope_theta": 0.5}, "theta"),
        ({"rope_theta": float("inf")}, "theta"),
        ({"rope_theta": 10**400}, "numbers make no model"),
        ({"rope_scaling": {"type": "linear", "factor": float("inf")}}, "factor"),
        ({"rope_scaling": {"type": "yarn", "original_max_position_embeddings": 0}}, "numbers make no model"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": -1}}, "not above 0"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 4.0}}, "not above 0"),
        ({"num_hidden_layers": 5000}, "num_layers is 5000"),
        ({"partial_rotary_factor": 0.5}, "partial"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "bitsandbytes.*AWQ and GPTQ"),
        ({"quantization_config": [1]}, "quantized with"),
        ({"quantization_config": {"quant_method": "awq", "bits": 8, "group_size": 128}}, "awq with 8 bits"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 48}}, "groups of 48"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemv"}}, "gemv"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": -1}}, "groups of -1"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128]}}, "weight_block_size"),
        ({"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": "x"}}, "not a list"),
        ({"tie_word_embeddings": "yes"}, "expected true or false"),
    ],
)
def test_configs_that_cannot_be_run(changes, message):
    with pytest.raises(WeightsError, match=message) as caught:
        parse(**changes)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)
