"""Facts about serving engines."""

from foretune.plan.describe import shipped_json

ENGINES = shipped_json("engines.json")
"""Engine -> its ``name``; the ``version`` that commands are for, against which all flags were
checked; the container ``image`` of a version for NVIDIA GPUs; prefixes of the GPU ``architectures``
that it runs on, as documented; ``caches``: cache format -> its name for it;
``online_quantization``: format that it can quantize a 16-bit checkpoint to while loading -> option.
``mixed_formats``: those that layers of one checkpoint may have, as documented: llm-compressor's
examples of non-uniform quantization for vLLM (and 16 bits), mixed precision of NVIDIA Model
Optimizer for TensorRT-LLM.

``reads_host_weights``: its kernels read weights directly from host memory (``cpu_offload_gb``,
unified addressing), and experts only if tokens are routed there; SGLang copies every layer before
running it. Neither overlaps this with compute. ``fetches_by_layer``: it fetches a layer of a cached
prefix while computing the previous one (hierarchical cache); in others, the request waits.
``reads_prefixes_from_disk``: it keeps prefixes in files by itself; vLLM does with LMCache.
"""
