import ./base/ray.nix {
  name = "ray-0731-multiagent";
  description = "DeepSeek V4 Flash 0731 over Ray: best aggregate (3 draft tokens, 8 sequences)";
  serve = {
    maxNumSeqs = 8;
    maxCudagraphCaptureSize = 64;
    speculativeConfig.num_speculative_tokens = 3;
  };
}
