import ./base/lab.nix {
  name = "lab-broken";
  description = "answers 200 and never a token";
  maxNumSeqs = 4;
  extraArgs = [ "--sim-fail" "no-tokens" ];
}
