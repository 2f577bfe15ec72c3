# vLLM 0.25.1 as built for GB10: what earlier builds read and this one only warns about.
let
  common = import ./common.nix;
in
common
// {
  registered = common.registered ++ [
    "DSPARK_SLOT_CLAMP"
    "VLLM_SKIP_INIT_MEMORY_CHECK"
    "VLLM_TRITON_MLA_SPARSE"
  ];
  ignored = common.ignored ++ [
    "VLLM_DSPARK_*"
    "VLLM_DSV4_*"
    "VLLM_USE_B12X_WO_PROJECTION"
  ];
}
