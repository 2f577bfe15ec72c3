# ghcr.io/anemll/dspark-vllm-gx10:0.1.0 with one file changed: vLLM PR 47356 keeps the KV pin out of the compile
# cache's key.
{
  name = "anemll-0-1-0-pr47356";
  description = "vLLM 0.25.1 for GB10 (anemll 0.1.0) with vLLM PR 47356";
  reference = "ghcr.io/anemll/dspark-vllm-gx10:0.1.0";
  systems = [ "aarch64-linux" ];
  vllm = "0.25.2.dev0+g752a3a504.d20260714";
  serve = [ "/usr/local/bin/vllm" "serve" ];
  python = "/usr/bin/python3";
  base = "sha256:d0a0c050252dd0b64a3213c728d1c15db9eb37602593ba37534bc708dd223ae7";
  # Kernels are compiled at run time, so the compiler must be found.
  environment = {
    CUDA_HOME = "/usr/local/cuda";
    CUDA_PATH = "/usr/local/cuda";
    CUDAToolkit_ROOT = "/usr/local/cuda";
    LD_LIBRARY_PATH = "/usr/local/cuda/lib64";
    PATH = "/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  };
  env = import ./env/vllm-0-25.nix;
  speculation = [ { method = "dspark"; min = 1; max = 5; sampling = [ "probabilistic" ]; } ];
  kvBlockBytes = 1065792;
}
