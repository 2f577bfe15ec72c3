# The mp recipe: vLLM's own multi-node start, no Ray.
import ./over.nix {
  model = {
    path = "/models/DeepSeek-V4-Flash-0731";
    servedName = "deepseek-v4-flash-dspark";
    weights = "deepseek-v4-flash-0731";
    # Above it agents loop, and with nvfp4 KV long requests collapse earlier (docs/gotchas.md G12, G14).
    fenceTokens = 120000;
  };
  executor = { kind = "mp"; port = 25000; };
  serve = {
    trustRemoteCode = true;
    tensorParallelSize = 2;
    pipelineParallelSize = 1;
    kvCacheDtype = "nvfp4_ds_mla";
    blockSize = 256;
    maxModelLen = 1048576;
    maxNumSeqs = 12;
    maxNumBatchedTokens = 8192;
    longPrefillTokenThreshold = 4096;
    shutdownTimeout = 30;
    gpuMemoryUtilization = 0.85;
    enablePrefixCaching = true;
    enableChunkedPrefill = true;
    speculativeConfig = {
      method = "dspark";
      num_speculative_tokens = 3;
      draft_sample_method = "probabilistic";
    };
    tokenizerMode = "deepseek_v4";
    toolCallParser = "deepseek_v4";
    enableAutoToolChoice = true;
    reasoningParser = "deepseek_v4";
    reasoningConfig = {
      reasoning_parser = "deepseek_v4";
      reasoning_start_str = "<think>";
      reasoning_end_str = "</think>";
    };
    defaultChatTemplateKwargs = { thinking = true; reasoning_effort = "high"; };
    generationConfig = "vllm";
    overrideGenerationConfig = { temperature = 1.0; top_p = 1.0; };
    enableFlashinferAutotune = true;
  };
  env = {
    B12X_W4A16_TC_DECODE = "0";
    DG_JIT_USE_NVRTC = "0";
    DSPARK_SLOT_CLAMP = "1";
    FLASHINFER_CUDA_ARCH_LIST = "12.1a";
    FLASHINFER_DISABLE_VERSION_CHECK = "1";
    HF_HUB_DISABLE_XET = "1";
    NCCL_CROSS_NIC = "1";
    NCCL_CUMEM_ENABLE = "0";
    NCCL_DEBUG = "WARN";
    NCCL_IB_DISABLE = "0";
    NCCL_IB_MERGE_NICS = "1";
    NCCL_IGNORE_CPU_AFFINITY = "1";
    NCCL_NET = "IB";
    NCCL_NVLS_ENABLE = "0";
    PYTORCH_CUDA_ALLOC_CONF = "expandable_segments:True";
    TILELANG_CLEANUP_TEMP_FILES = "1";
    TORCH_CUDA_ARCH_LIST = "12.1a";
    TRANSFORMERS_OFFLINE = "1";
    VLLM_ALLOW_LONG_MAX_MODEL_LEN = "0";
    VLLM_B12X_W4A16_FORCE_BLOCKS_MAX_M = "16";
    VLLM_B12X_W4A16_FORCE_BLOCKS_PER_SM = "0";
    VLLM_B12X_W4A16_FORCE_TILE_CONFIG = "";
    VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS = "600";
    VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS = "0";
    VLLM_SPARSE_INDEXER_MAX_LOGITS_MB = "256";
    VLLM_USE_B12X_MOE = "1";
    VLLM_USE_FLASHINFER_SAMPLER = "1";
  };
  container = import ./spark.nix;
  gates = import ./gates.nix { nodeSecs = 60; apiSecs = 120; tokenSecs = 300; };
  budgets = { startSecs = 1500; confirmSecs = 120; stopSecs = 60; };
}
