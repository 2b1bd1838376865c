"""AIConfigurator's vocabulary: what its operations and columns are called in a run table."""

KERNELS = {
    "gemm": "gemm",
    "moe": "moe",
    "context_attention": "attention_prefill",
    "generation_attention": "attention_decode",
    "encoder_attention": "attention_encoder",
    "context_mla": "mla_prefill",
    "generation_mla": "mla_decode",
    "mla_context_module": "mla_prefill_module",
    "mla_generation_module": "mla_decode_module",
    "custom_allreduce": "all_reduce",
    "computescale": "quantize",
    "scale_matrix": "quantize",
    "nccl": "",
    "oneccl": "",
}
"""Operation -> kernel; empty where every row names its own. Others keep their name."""

OTHER_OPERATIONS = ("mla_bmm", "gdn", "kda", "mamba2", "mhc_module", "moe_a2a", "trtllm_alltoall",
          "dsa_context_module", "dsa_generation_module", "msa_context_module",
          "msa_generation_module", "dsv4_csa_context_module", "dsv4_csa_generation_module",
          "dsv4_hca_context_module", "dsv4_hca_generation_module", "wideep_moe",
          "wideep_context_mla", "wideep_generation_mla", "wideep_context_moe",
          "wideep_generation_moe", "wideep_context_mlp", "wideep_generation_mlp",
          "wideep_deepep_ll", "wideep_deepep_normal")  # fmt: skip
"""Operations that keep their name, to be recognised without ``_perf`` in the file's name."""

COLLECTIVES = {"alltoall": "all_to_all"}
"""Collective -> kernel, where the names differ."""

QUANTIZE_OPS = {"computescale": "compute_scale", "scale_matrix": "scale_matrix"}
"""Operation -> ``problem.op`` of the kernel ``quantize``."""

RUN_COLUMNS = {
    "m": "problem.M",
    "n": "problem.N",
    "k": "problem.K",
    "batch_size": "problem.batch",
    "isl": "problem.seq_len",
    "seq_len": "problem.seq_len",
    "step": "problem.prefix_len",
    "num_heads": "problem.heads",
    "num_key_value_heads": "problem.kv_heads",
    "head_dim": "problem.head_dim",
    "window_size": "problem.window",
    "num_tokens": "problem.tokens",
    "num_token": "problem.tokens",
    "hidden_size": "problem.hidden",
    "inter_size": "problem.intermediate",
    "intermediate_size": "problem.intermediate",
    "topk": "problem.top_k",
    "num_topk": "problem.top_k",
    "num_experts": "problem.experts",
    "distribution": "problem.distribution",
    "num_gpus": "problem.devices",
    "phase": "problem.phase",
    "model": "problem.model",
    "model_name": "problem.model",
    "architecture": "problem.architecture",
    "moe_tp_size": "config.tp",
    "tp_size": "config.tp",
    "moe_ep_size": "config.ep",
    "ep_size": "config.ep",
    "sms": "config.sms",
    "gemm_type": "config.gemm_format",
    "kv_cache_dtype": "config.kv_format",
    "kernel_dtype": "config.kernel_format",
    "kernel_source": "config.implementation",
}
"""Column -> run-table column. ``…_dtype`` is ``config.format``; of the rest, numbers are part of
the problem, text and switches of the configuration."""

FORMAT_COLUMNS = ("gemm_dtype", "moe_dtype", "attn_dtype", "mla_dtype", "bmm_dtype", "quant_dtype",
           "quant_type", "nccl_dtype", "allreduce_dtype", "comm_dtype")  # fmt: skip
"""Columns that hold the number format of the operation."""

LABEL_COLUMNS = ("framework", "version", "device", "op_name", "system", "backend", "backend_version",
          "beam_width", "message_size", "ar_backend", "implementation")  # fmt: skip
"""Columns that say where a row is from, or are read by name; not copied."""

MEASURED_COLUMNS = ("latency", "avg_ms", "power", "power_limit")
"""Columns that were measured; others of those end in ``_us`` or ``_gbps``."""

REQUIRED_COLUMNS = {
    "gemm": ("gemm_dtype", "m", "n", "k"),
    "moe": ("moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts",
            "moe_tp_size", "moe_ep_size", "distribution"),
    "context_attention": ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim",
                          "attn_dtype", "kv_cache_dtype", "step"),
    "generation_attention": ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim",
                             "attn_dtype", "kv_cache_dtype", "step"),
    "encoder_attention": ("batch_size", "isl", "num_heads", "head_dim", "attn_dtype"),
    "context_mla": ("mla_dtype", "kv_cache_dtype", "num_heads", "batch_size", "isl", "step"),
    "generation_mla": ("mla_dtype", "kv_cache_dtype", "num_heads", "batch_size", "isl", "step"),
    "custom_allreduce": ("allreduce_dtype", "num_gpus", "message_size"),
    "nccl": ("op_name", "nccl_dtype", "num_gpus", "message_size"),
    "oneccl": ("op_name", "nccl_dtype", "num_gpus", "message_size"),
    "computescale": ("m", "k", "quant_dtype"),
    "scale_matrix": ("m", "k", "quant_dtype"),
}  # fmt: skip
"""Operation -> the columns without which a table of it is not one."""
