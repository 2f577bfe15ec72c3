import ./base/mp.nix {
  name = "mp-0251";
  description = "DeepSeek V4 Flash 0731 without Ray, vLLM 0.25.1, KV cache pinned";
  image = "anemll-0-1-0-pr47356";
  serve = {
    maxCudagraphCaptureSize = 96;
    asyncScheduling = true;
    kvCacheMemoryBytes = 21316272128;
  };
  env = {
    DG_JIT_NVCC_COMPILER = "/usr/local/cuda/bin/nvcc";
    VLLM_SKIP_INIT_MEMORY_CHECK = "1";
    VLLM_TRITON_MLA_SPARSE = "1";
    VLLM_USE_BREAKABLE_CUDAGRAPH = "1";
  };
}
