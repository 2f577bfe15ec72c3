# What `cargo xtask bench deploy` has stock deploy-rs deploy: the very closures that sparklane deploys, each in a profile
# with deploy-rs's own `activate` and the activation script beside this file. `xtask` writes closures.json:
# { "activate": "<store path>", "profiles": { "lab-a-head": { "closure": …, "host": …, "role": … }, … } }.
{
  description = "sparklane's lab generations as stock deploy-rs profiles";

  outputs = _:
    let
      inherit (builtins) appendContext fromJSON mapAttrs readFile;

      given = fromJSON (readFile ./closures.json);
      # A path of this host's store as a dependency, without evaluating what it was built from.
      inStore = path: appendContext path { ${path}.path = true; };

      profile = name: { closure, role, ... }: derivation {
        inherit name role;
        system = "x86_64-linux";
        closure = inStore closure;
        activate = inStore given.activate;
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
    in
    {
      deploy = {
        sshUser = "operator";
        user = "root";
        # The nodes have nothing to substitute from.
        fastConnection = true;
        # Nobody but root may plant a canary there.
        tempPath = "/run";
        nodes = mapAttrs
          (name: given: {
            hostname = given.host;
            profiles.sparklane = {
              path = profile name given;
              profilePath = "/nix/var/nix/profiles/sparklane";
            };
          })
          given.profiles;
      };
    };
}
