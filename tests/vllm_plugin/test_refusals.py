"""What the plugin does not do is refused before anything is loaded, by name; what it does, with other options, works."""

import numpy as np
import pytest
import vllm_models
from vllm_running import FEW_PROGRAMS, engine, greedy, logprobs, recorded, tokens

MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
LFM2 = {
    "architectures": ["Lfm2ForCausalLM"],
    "model_type": "lfm2",
    "layer_types": ["conv", "full_attention"] * 2,
}
BERT = {"architectures": ["BertModel"], "model_type": "bert"}
WHOLE = {"max_num_batched_tokens": 512}  # prompts, which vLLM asks for
FP8_WITH_CACHE = {
    "quant_method": "modelopt",
    "quant_algo": "FP8",
    "kv_cache_quant_algo": "FP8",
    "ignore": [],
}
MIXED = {
    "quant_method": "modelopt",
    "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.layers.0.mlp.down_proj": {"quant_algo": "MXFP8"},
    },
}
QUANTIZED = {"quantization_config": {"quant_method": "experts_int8"}}


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        (
            QUANTIZED,
            {"dtype": "bfloat16"},
            "quantized weights (experts_int8), expected one of auto_awq",
        ),
        (
            LFM2,
            {"kv_cache_dtype": "fp8", "dtype": "float16"},
            "--kv-cache-dtype fp8 beside recurrent layers, whose states share its pages, expected auto or float16",
        ),
        (
            LFM2 | {"quantization_config": FP8_WITH_CACHE},
            {"dtype": "bfloat16"},
            "--kv-cache-dtype fp8_e4m3 beside recurrent layers, whose states share its pages, expected bfloat16, "
            "since the checkpoint makes fp8 of auto",
        ),
        (
            {"quantization_config": MIXED},
            {"dtype": "bfloat16"},
            "quantized weights (MXFP8), expected one of FP8, FP8_PB_WO",
        ),
        (
            LFM2,
            {"enable_prefix_caching": True},
            "prefixes of recurrent layers (--enable-prefix-caching)",
        ),
        (
            LFM2,
            {"mamba_cache_dtype": "bfloat16"},
            "--mamba-cache-dtype bfloat16, expected auto or float32",
        ),
        (
            LFM2,
            {"mamba_ssm_cache_dtype": "float16"},
            "--mamba-ssm-cache-dtype float16, expected at least as many bits as float32",
        ),
        (
            BERT,
            WHOLE | {"enable_chunked_prefill": True},
            "chunks of prompts (--enable-chunked-prefill) with attention in both directions, "
            "expected --no-enable-chunked-prefill",
        ),
        (
            BERT,
            WHOLE | {"enable_prefix_caching": True},
            "prefixes of prompts (--enable-prefix-caching) with attention in both directions, "
            "expected --no-enable-prefix-caching",
        ),
        (
            BERT,
            WHOLE | {"long_prefill_token_threshold": 64},
            "parts of prompts (--long-prefill-token-threshold 64) with attention in both directions, expected 0",
        ),
        (
            BERT,
            WHOLE | {"kv_cache_dtype": "fp8"},
            "--kv-cache-dtype fp8 with attention in both directions, which has no cache, expected auto",
        ),
        (
            BERT | {"architectures": ["ModernBertModel"]},
            WHOLE | {"tensor_parallel_size": 2},
            "ModernBERT on several ranks (--tensor-parallel-size): 2, expected 1",
        ),
        ({"index_topk": 64}, {}, "sparse attention (LlamaForCausalLM)"),
        ({"head_dim": 520}, {}, "heads of 520 on cpu, expected a multiple of 8 up to 512"),
        ({"head_dim": 20}, {}, "heads of 20 on cpu"),
        ({"global_head_dim": 520}, {}, "heads of 520 on cpu"),
        ({}, {"enable_lora": True}, "LoRA (--enable-lora)"),
        (
            {},
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}},
            "speculative decoding (--speculative-config)",
        ),
        ({}, {"watermark_config": {"key": 7}}, "watermarks (--watermark-config)"),
        (
            MIXTRAL,
            {"enable_return_routed_experts": True},
            "experts of tokens as an output (--enable-return-routed-experts)",
        ),
        ({}, {"pipeline_parallel_size": 2}, "pipeline parallelism (--pipeline-parallel-size): 2"),
        ({}, {"kv_offloading_size": 1.0}, "KV caches on the host (--kv-offloading-size)"),
        (
            {},
            {"distributed_executor_backend": "external_launcher"},
            "--distributed-executor-backend external_launcher, expected one of uni, mp, ray",
        ),
        (
            MIXTRAL,
            {"data_parallel_size": 2},
            "experts across engines (--data-parallel-size of a mixture): 2, expected 1",
        ),
        (
            {},
            {"data_parallel_size": 2, "distributed_executor_backend": "ray"},
            "replicas of ranks in Ray (--data-parallel-size with --distributed-executor-backend ray): 2",
        ),
        (
            {},
            {"data_parallel_size": 2, "data_parallel_backend": "ray"},
            "engines that Ray starts (--data-parallel-backend ray), expected mp",
        ),
        ({}, {"cpu_offload_gb": 1}, "weights on the host (--cpu-offload-gb)"),
        ({}, {"block_size": 12}, "--block-size 12, expected a multiple of 8"),
        ({}, {"enable_prompt_embeds": True}, "embeddings as prompts (--enable-prompt-embeds)"),
        (
            {},
            {"kv_cache_dtype": "nvfp4"},
            "--kv-cache-dtype nvfp4 for torch.float32, expected one of auto, fp8, fp8_e4m3, fp8_e5m2",
        ),
        (
            {},
            {"kv_cache_dtype": "nvfp4", "dtype": "bfloat16"},
            "--kv-cache-dtype nvfp4 for torch.bfloat16, expected one of auto, bfloat16, fp8, fp8_e4m3, fp8_e5m2",
        ),
        (
            {},
            {"kv_transfer_config": {"kv_connector": "ExampleConnector", "kv_role": "kv_both"}},
            "KV connectors (--kv-transfer-config)",
        ),
    ],
    ids=lambda value: value.split(" (")[0] if isinstance(value, str) else "",
)
def test_refused_at_start(configured, changes, options, message):
    with pytest.raises(Exception) as error:
        configured(changes, **options)
    assert "intarsia-vllm does not support " in str(error.value)
    assert message in str(error.value)


DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
}


def test_latents_become_heads(configured):
    assert configured(DEEPSEEK).model_config.get_head_size() == 192


def test_latents_are_refused(configured, monkeypatch):
    """Heads take their place unless a user asks for them."""
    monkeypatch.setenv("VLLM_MLA_DISABLE", "0")
    with pytest.raises(Exception, match="caches of latents"):
        configured(DEEPSEEK)


def test_the_same_model_is_taken_without_those(configured):
    """Or the refusals above might be of anything."""
    config = configured()
    assert config.parallel_config.worker_cls == "intarsia.vllm.worker.XlaCpuWorker"


def test_a_cache_in_the_models_dtype_has_its_name(configured):
    config = configured(LFM2, kv_cache_dtype="bfloat16", dtype="bfloat16")
    assert config.cache_config.cache_dtype == "bfloat16"


def test_an_encoder_is_taken_without_those(configured):
    assert configured(BERT, **WHOLE).model_config.attn_type == "encoder_only"


def test_layers_ask_for_whole_prompts_themselves(configured):
    """Whatever vLLM takes the model for: here a decoder, with chunks and prefixes."""
    from intarsia.vllm.encoder import XlaEncoderMetadataBuilder

    with pytest.raises(NotImplementedError, match=r"chunks of prompts .*; prefixes of prompts"):
        XlaEncoderMetadataBuilder(None, ["layer"], configured(), None)


@pytest.mark.parametrize("name", ["alibi_slopes", "kv_sharing_target_layer_name", "sinks"])
def test_attention_in_both_directions_lacks_some_arguments(name):
    from intarsia.vllm.encoder import XlaEncoderAttention

    XlaEncoderAttention(2, 64, 1.0)
    with pytest.raises(NotImplementedError, match=f"in both directions with {name}, expected none"):
        XlaEncoderAttention(2, 64, 1.0, **{name: "given"})


def test_a_model_with_states_is_taken_without_those(configured):
    """And without prefix caching, vLLM's default for such models, too."""
    assert configured(LFM2).cache_config.enable_prefix_caching is False


def test_prefix_caching_is_the_default_of_other_models(configured):
    assert configured().cache_config.enable_prefix_caching is True


def test_the_dtypes_that_states_have_are_taken(configured):
    states = {"mamba_cache_dtype": "bfloat16", "mamba_ssm_cache_dtype": "float32"}
    assert configured(LFM2, dtype="bfloat16", **states).cache_config.mamba_cache_mode == "none"


def test_a_replica_counts_gpus_from_the_hosts_first(configured):
    """vLLM makes an engine's configuration again, with the numbers of its GPUs, as if --device-ids had been given."""
    config = configured(data_parallel_size=2)
    config.parallel_config.data_parallel_rank_local = 1
    config.parallel_config.assigned_physical_gpu_ids = [1]
    config.__post_init__()
    assert config.parallel_config.assigned_physical_gpu_ids is None
    config.parallel_config.data_parallel_rank_local = None
    config.parallel_config.assigned_physical_gpu_ids = [1]
    with pytest.raises(NotImplementedError, match="a choice of GPUs by --device-ids"):
        config.__post_init__()


def test_a_choice_of_gpus_is_refused_for_one_engine(configured):
    """Whose number among replicas vLLM sets, too."""
    config = configured()
    config.parallel_config.data_parallel_rank_local = 0
    config.parallel_config.assigned_physical_gpu_ids = [1]
    with pytest.raises(NotImplementedError, match="a choice of GPUs by --device-ids"):
        config.__post_init__()


def test_replicas_balanced_by_hosts_are_taken(configured):
    options = {
        "data_parallel_size": 4,
        "data_parallel_size_local": 2,
        "data_parallel_start_rank": 2,
    }
    parallel = configured(**options, data_parallel_hybrid_lb=True).parallel_config
    assert parallel.data_parallel_hybrid_lb and not parallel.data_parallel_external_lb
    assert (parallel.data_parallel_rank, parallel.data_parallel_size_local) == (2, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"data_parallel_rank": 1},
        {"data_parallel_external_lb": True, "data_parallel_rank": 0},
        {"data_parallel_external_lb": True, "nnodes": 2, "node_rank": 1},
    ],
)
def test_replicas_balanced_by_others_are_servers_of_their_own(configured, options):
    """vLLM's own refusal, which docs/scaling.md tells."""
    with pytest.raises(ValueError, match="do not support external data parallel mode"):
        configured(data_parallel_size=2, **options)


def test_a_host_with_one_replica_is_a_server_of_its_own(configured):
    """vLLM would change hybrid to external balancing, and fail when the model is loaded."""
    options = {"data_parallel_size_local": 1, "data_parallel_start_rank": 1}
    with pytest.raises(Exception, match="external balancing of a dense model's replicas"):
        configured(data_parallel_size=2, data_parallel_hybrid_lb=True, **options)


@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "fp8_e5m2"])
def test_a_cache_in_fp8(model, kv_cache_dtype):
    """Half a bf16's bytes: log-probabilities move a little, and the text stays what it was about."""
    told = recorded(vllm_models.SMOLLM2)
    with engine(
        model(vllm_models.SMOLLM2), kv_cache_dtype=kv_cache_dtype, additional_config=FEW_PROGRAMS
    ) as llm:
        requests = llm.generate(vllm_models.PROMPTS, greedy(logprobs=1), use_tqdm=False)
        assert "Paris" in requests[0].outputs[0].text
        assert "fibonacci" in requests[2].outputs[0].text
        first = [of_request[0] for of_request in logprobs(requests)]
        np.testing.assert_allclose(first, [s["logprobs"][0] for s in told], atol=0.5)
        assert tokens(requests) != [s["tokens"] for s in told], "nothing was rounded"
        again = llm.generate(vllm_models.PROMPTS, greedy(), use_tqdm=False)
        assert tokens(again) == tokens(requests)
