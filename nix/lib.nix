# The building blocks: the static tool for a system, and derivations whose builder is that tool.
{ prebuilt, nixpkgs }:
let
  inherit (builtins) filter pathExists;

  known = [ "x86_64-linux" "aarch64-linux" ];
  binary = system: prebuilt + "/${system}/sparklane";
  present = filter (system: pathExists (binary system)) known;
in
rec {
  # With a prebuilt input nixpkgs is never looked at, and only what the input holds can be built.
  fromSource = present == [ ];
  systems = if fromSource then known else present;

  # The tool of a system as one file in a store path of its own.
  program = system:
    if fromSource then
      "${import ./package.nix { inherit nixpkgs system; }}/bin/sparklane"
    else
      builtins.path { path = binary system; name = "sparklane"; };

  # A derivation built by `sparklane build WHAT` on `system`. The tool reads the attributes as JSON.
  build = system: what: name: attrs:
    derivation (attrs // {
      inherit name system;
      builder = program system;
      args = [ "build" what ];
      __structuredAttrs = true;
    });

  # bin/sparklane for `forSystem`, made on `system`; small, and the same path whatever lane a node serves.
  tool = system: forSystem:
    build system "package" "sparklane-${(builtins.fromTOML (builtins.readFile ../Cargo.toml)).workspace.package.version}" {
      program = program forSystem;
      nodeSystem = forSystem;
    };
}
