import ./base/lab.nix {
  name = "lab-a";
  description = "the lab's first lane";
}
