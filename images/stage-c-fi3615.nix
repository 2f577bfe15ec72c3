# Built by hand on a node (vLLM 0.21 under /opt/env, FlashInfer PR 3615), so it is adopted rather than composed.
{
  name = "stage-c-fi3615";
  description = "vLLM 0.21 (stage C) with FlashInfer PR 3615, adopted";
  reference = "vllm-dspark-runtime:dspark-nvfp4-stage-c-fi3615";
  systems = [ "aarch64-linux" ];
  vllm = "0.21.0";
  serve = [ "/opt/env/bin/vllm" "serve" ];
  python = "/opt/env/bin/python3";
  base = "sha256:d8492e7677cf1b9aaa3344e0e6865efc468454013eee5ebabac85be90af027be";
  adopted = true;
  environment = {
    CUDA_HOME = "/opt/env";
    CUDA_PATH = "/opt/env";
    CUDAToolkit_ROOT = "/opt/env";
    LD_LIBRARY_PATH = "/opt/env/lib";
    PATH = "/opt/env/bin:/opt/env/nvvm/bin:/opt/env/targets/sbsa-linux/nvvm/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
  };
  env = import ./env/vllm-0-21.nix;
  speculation = [ { method = "dspark"; min = 1; max = 5; sampling = [ "probabilistic" ]; } ];
  kvBlockBytes = 1065792;
}
