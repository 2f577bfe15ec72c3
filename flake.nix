{
  description = "One pinned, reversible serving lane for a pair of DGX Sparks";

  inputs = {
    # Only to build the tool from source, for the dev shell and the formatter.
    nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";
    # A folder with <system>/sparklane (cargo xtask prebuilt); then nothing here needs nixpkgs or a network.
    prebuilt = { url = "path:./nix/prebuilt"; flake = false; };
    # A folder with Python wheels for images that add some.
    wheelhouse = { url = "path:./nix/wheelhouse"; flake = false; };
  };

  outputs = inputs: import ./nix inputs;
}
