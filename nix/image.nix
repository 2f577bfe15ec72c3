# An image of ours: what is ours of it as a layout (docs/images.md). `spec` is a file of images/compose.
{ lib, wheelhouse }:
system: spec:
let
  inherit (builtins) pathExists replaceStrings;
  hex = digest: replaceStrings [ "sha256:" ] [ "" ] digest;
  pin = ../images/pins + "/${hex spec.base.manifest}";
  recorded = ../images + "/${spec.name}.pin.json";

  # A document is its digest, so Nix may fetch it. A committed pin holds it already.
  document = kind: file: digest:
    if pathExists (pin + "/${file}") then pin + "/${file}"
    else if digest == null then null
    else lib.build system "fetch-blob" "${spec.name}-base-${kind}" {
      inherit (spec.base) reference;
      inherit kind digest;
      outputHashMode = "flat";
      outputHashAlgo = "sha256";
      outputHash = hex digest;
    };
  tree = pin + "/tree.json";
in
lib.build system "image" "image-${spec.name}" {
  spec = spec // (if pathExists recorded then { expected = builtins.fromJSON (builtins.readFile recorded); } else { });
  manifest = document "manifest" "manifest.json" spec.base.manifest;
  config = document "config" "config.json" (spec.base.config or null);
  index = if pathExists tree then tree else null;
  wheels = wheelhouse;
  # Sources of plain files are paths of the store.
  sources = "/";
}
