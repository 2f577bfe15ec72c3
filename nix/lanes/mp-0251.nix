import ./base/mp.nix {
  name = "mp-0251";
  description = "DeepSeek V4 Flash 0731 without Ray, vLLM 0.25.1, KV cache pinned";
  image = "anemll-0-1-0-pr47356";
  captureSize = 96;
  nvcc = "/usr/local/cuda/bin/nvcc";
  asyncScheduling = true;
  kvCacheMemoryBytes = 21316272128;
  env = {
    VLLM_SKIP_INIT_MEMORY_CHECK = "1";
    VLLM_TRITON_MLA_SPARSE = "1";
    VLLM_USE_BREAKABLE_CUDAGRAPH = "1";
  };
}
