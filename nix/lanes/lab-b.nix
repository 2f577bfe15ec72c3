import ./base/lab.nix {
  name = "lab-b";
  description = "lab-a with one flag changed";
  serve.maxNumSeqs = 8;
}
