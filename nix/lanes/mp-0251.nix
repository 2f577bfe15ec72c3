import ./base/mp.nix {
  name = "mp-0251";
  description = "DeepSeek V4 Flash 0731 without Ray, vLLM 0.25.1, KV cache pinned";
  image = "anemll-0-1-0-pr47356";
  captureSize = 96;
  nvcc = "/usr/local/cuda/bin/nvcc";
  kvCacheMemoryBytes = 21316272128;
}
