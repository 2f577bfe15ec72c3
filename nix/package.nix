# The tool from source, static. This path needs nixpkgs, and could not be run where it was written.
{ nixpkgs, system }:
let
  pkgs = nixpkgs.legacyPackages.${system};
  static = pkgs.pkgsStatic;
  inherit (pkgs) lib;
  manifest = lib.importTOML ../Cargo.toml;
in
static.rustPlatform.buildRustPackage {
  pname = "sparklane";
  inherit (manifest.workspace.package) version;
  src = lib.fileset.toSource {
    root = ../.;
    fileset = lib.fileset.unions [ ../Cargo.toml ../Cargo.lock ../crates ../xtask ../clippy.toml ];
  };
  cargoLock.lockFile = ../Cargo.lock;
  cargoBuildFlags = [ "--package" "sparklane" ];
  # Tests evaluate the flake and drive the lab; `cargo xtask test` runs them.
  doCheck = false;
  meta = {
    description = "One pinned, reversible serving lane for a pair of DGX Sparks";
    license = lib.licenses.asl20;
    mainProgram = "sparklane";
    platforms = [ "x86_64-linux" "aarch64-linux" ];
  };
}
