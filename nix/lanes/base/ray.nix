# The Ray recipe ("twinspark"); its two profiles differ in sequences and draft depth.
import ./over.nix {
  image = "anemll-0-1-1-ray";
  model = {
    path = "/models/DeepSeek-V4-Flash-0731";
    servedName = "ds-0731";
    weights = "deepseek-v4-flash-0731";
    # Above it agents loop, and with nvfp4 KV long requests collapse earlier (docs/gotchas.md G12, G14).
    fenceTokens = 150000;
  };
  executor = { kind = "ray"; port = 6379; };
  serve = {
    trustRemoteCode = true;
    tensorParallelSize = 2;
    pipelineParallelSize = 1;
    kvCacheDtype = "fp8_ds_mla";
    moeBackend = "flashinfer_b12x";
    blockSize = 256;
    maxModelLen = 1048576;
    maxNumBatchedTokens = 8192;
    gpuMemoryUtilization = 0.85;
    enablePrefixCaching = true;
    asyncScheduling = true;
    enableChunkedPrefill = true;
    speculativeConfig = {
      method = "dspark";
      draft_sample_method = "probabilistic";
    };
    tokenizerMode = "deepseek_v4";
    toolCallParser = "deepseek_v4";
    enableAutoToolChoice = true;
    reasoningParser = "deepseek_v4";
    generationConfig = "vllm";
  };
  env = {
    NCCL_DEBUG = "WARN";
    NCCL_IB_DISABLE = "0";
    NCCL_NET = "IB";
    NCCL_NET_GDR_LEVEL = "5";
    RAY_DISABLE_MEMORY_MONITOR = "1";
    VLLM_USE_B12X_MOE = "1";
    VLLM_USE_BREAKABLE_CUDAGRAPH = "0";
    VLLM_USE_FLASHINFER_SAMPLER = "1";
  };
  container = import ./spark.nix;
  gates = import ./gates.nix { nodeSecs = 60; apiSecs = 120; tokenSecs = 300; };
  budgets = { startSecs = 1500; confirmSecs = 120; stopSecs = 45; };
}
