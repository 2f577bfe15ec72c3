# An image of ours: what is ours of it as a layout (docs/images.md). `spec` is a file of images/compose, `image` what the
# catalogue has of that name, `pins` are folders of pins.
{ lib, wheelhouse }:
{ system, spec, image ? { }, pins }:
let
  inherit (builtins) filter head intersectAttrs pathExists replaceStrings;
  hex = digest: replaceStrings [ "sha256:" ] [ "" ] digest;
  folders = map (folder: folder + "/${hex spec.base.manifest}") pins;
  pin = head (filter pathExists folders ++ folders);
  # `image build --record` writes more than the digests, so that a build can say what moved.
  recorded = ../images + "/${spec.name}.pin.json";
  expected =
    if pathExists recorded then builtins.fromJSON (builtins.readFile recorded)
    else intersectAttrs { manifest = null; config = null; } image;

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
  spec = spec // (if expected ? manifest then { inherit expected; } else { });
  manifest = document "manifest" "manifest.json" spec.base.manifest;
  config = document "config" "config.json" (spec.base.config or null);
  index = if pathExists tree then tree else null;
  wheels = wheelhouse;
  # Sources of plain files are paths of the store.
  sources = "/";
}
