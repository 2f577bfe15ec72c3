# vLLM 0.21 (stage C): it still reads the names of its own DSpark work.
let
  common = import ./common.nix;
in
common
// {
  registered = common.registered ++ [
    "DSPARK_SLOT_CLAMP"
    "VLLM_DSPARK_*"
    "VLLM_DSV4_*"
    "VLLM_SKIP_INIT_MEMORY_CHECK"
    "VLLM_TRITON_MLA_SPARSE"
    "VLLM_USE_B12X_WO_PROJECTION"
  ];
}
