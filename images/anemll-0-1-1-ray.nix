# ghcr.io/anemll/dspark-vllm-gx10:0.1.1 with the pinned Ray wheels on top.
let
  names = import ./env/vllm-0-25.nix;
in
{
  name = "anemll-0-1-1-ray";
  description = "vLLM 0.25.1 for GB10 (anemll 0.1.1) with Ray 2.57.0";
  reference = "ghcr.io/anemll/dspark-vllm-gx10:0.1.1";
  systems = [ "aarch64-linux" ];
  vllm = "0.25.2.dev0+g752a3a504.d20260714";
  serve = [ "/usr/local/bin/vllm" "serve" ];
  python = "/usr/bin/python3";
  ray = "/usr/local/bin/ray";
  base = "sha256:a83948492cf13df455170fb42885f5ef4db54fefe0feff0f841ecbff464ac9d8";
  env = names // { registered = names.registered ++ [ "RAY_*" ]; };
  speculation = [ { method = "dspark"; min = 1; max = 7; sampling = [ "probabilistic" "greedy" ]; } ];
  kvBlockBytes = 1065792;
}
