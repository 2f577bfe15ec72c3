{
  description = "Our DGX Sparks";

  inputs.sparklane.url = "github:sparklane/sparklane";

  outputs = { self, sparklane }:
    sparklane.lib.mkCluster {
      inherit self;
      cluster = import ./cluster.nix;
    };
}
