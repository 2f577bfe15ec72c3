# Environment names that mean something to every vLLM image for GB10.
{
  registered = [
    # libraries below vLLM
    "CUDA_*"
    "DG_JIT_*"
    "FLASHINFER_*"
    "GLOO_*"
    "HF_*"
    "NCCL_*"
    "PYTORCH_*"
    "TILELANG_*"
    "TORCH_*"
    "TRANSFORMERS_*"
    "TRITON_*"
    # the kernels of b12x
    "B12X_W4A16_TC_DECODE"
    # vLLM
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
    "VLLM_B12X_W4A16_FORCE_*"
    "VLLM_CACHE_ROOT"
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
    "VLLM_HOST_IP"
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
    "VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"
    "VLLM_USE_B12X_MOE"
    "VLLM_USE_BREAKABLE_CUDAGRAPH"
    "VLLM_USE_FLASHINFER_SAMPLER"
  ];
  ignored = [
    # read by the recipes' own shell scripts, not by the engine
    "DEFAULT_THINKING"
    "DSPARK_REASONING"
    "DSPARK_REASONING_EFFORT"
    "HEADLESS"
    "HEAD_ADDR"
    "HEAD_IP"
    "MASTER_ADDR"
    "MASTER_PORT"
    "MTP_NUM_TOKENS"
    "NODE_RANK"
  ];
  # Takes the machine's unified memory and does not come back.
  forbidden = [ "VLLM_DSV4_B12X_COMPRESSED_MLA=1" ];
}
