import ./base/lab.nix {
  name = "lab-broken";
  description = "answers 200 and never a token";
  serve.extraArgs = [ "--sim-fail" "no-tokens" ];
}
