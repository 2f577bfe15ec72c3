import ./base/ray.nix {
  name = "ray-0731";
  description = "DeepSeek V4 Flash 0731 over Ray: best single stream (7 draft tokens, 6 sequences)";
  serve = {
    maxNumSeqs = 6;
    maxCudagraphCaptureSize = 96;
    speculativeConfig.num_speculative_tokens = 7;
  };
}
