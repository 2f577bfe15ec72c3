import ./base/ray.nix {
  name = "ray-0731-multiagent";
  description = "DeepSeek V4 Flash 0731 over Ray: best aggregate (3 draft tokens, 8 sequences)";
  maxNumSeqs = 8;
  draftTokens = 3;
  captureSize = 64;
}
