# What `cargo xtask bench deploy` has stock deploy-rs deploy: the very closures that sparklane deploys, evaluated from the
# same flake, each in a profile with deploy-rs's own `activate` and the activation script beside this file.
{
  description = "sparklane's lab lanes as stock deploy-rs profiles";

  inputs = {
    prebuilt = { url = "path:/root/prebuilt"; flake = false; };
    # A folder with deploy-rs's `activate`.
    deploy-rs = { url = "path:/root/deploy-rs"; flake = false; };
    sparklane = { url = "path:/root/sparklane"; inputs.prebuilt.follows = "prebuilt"; };
  };

  outputs = { sparklane, deploy-rs, ... }:
    let
      inherit (builtins) concatMap listToAttrs;
      inherit (sparklane.lib.catalog.clusters.lab) nodes;

      profile = lane: node: derivation {
        name = "${lane}-${node}";
        system = "x86_64-linux";
        inherit (nodes.${node}) role;
        closure = sparklane.packages.x86_64-linux."generation-lab-${lane}-${node}";
        activate = "${deploy-rs}/activate";
        script = ./activate.sh;
        builder = "/bin/sh";
        PATH = "/usr/bin:/bin";
        args = [ "-euc" ''
          mkdir "$out"
          ln -s "$closure"/* "$out/"
          rm "$out/activate-rs" "$out/deploy-rs-activate"
          ln -s "$activate" "$out/activate-rs"
          cp "$script" "$out/deploy-rs-activate"
          chmod 555 "$out/deploy-rs-activate"
          echo "$role" > "$out/role"
        '' ];
      };

      deployed = lane: node: {
        name = "${lane}-${node}";
        value = {
          hostname = nodes.${node}.host;
          profiles.sparklane = {
            path = profile lane node;
            profilePath = "/nix/var/nix/profiles/sparklane";
          };
        };
      };
    in
    {
      deploy = {
        sshUser = "operator";
        user = "root";
        # The nodes have nothing to substitute from.
        fastConnection = true;
        # Nobody but root may plant a canary there.
        tempPath = "/run";
        nodes = listToAttrs (concatMap (lane: map (deployed lane) [ "head" "worker" ]) [ "lab-a" "lab-b" ]);
      };
    };
}
