# What can be proved without the machines. Each is one run of the static tool.
{ lib, system, catalog, clusters }:
let
  inherit (builtins) attrValues foldl' mapAttrs;
  here = builtins.filter (c: c.buildSystem == system && c.buildable) (attrValues clusters);
  merge = f: foldl' (a: c: a // f c) { } here;
  generations = merge (c: c.packages);
  check = what: attrs: lib.build system "check-${what}" "check-${what}" attrs;
  # Paths of the closures stay in; everything else of the deploy output is plain data.
  plain = node: node // {
    profiles = mapAttrs (_: p: p // { path = "${p.path}"; }) node.profiles;
  };
in
{
  schema = check "schema" { inherit catalog; };
  golden = check "golden" { inherit generations; golden = ../tests/golden; };
  determinism = check "determinism" { inherit generations; again = merge (c: c.again); };
  elf = check "elf" { inherit generations; };
  units = check "units" { inherit generations; };
  # A small base of our own with a wheel, an edit and a file; its digest is recorded in the spec.
  image =
    let
      spec = builtins.fromJSON (builtins.readFile ../tests/image/spec.json);
      pin = ../tests/image/pins + "/${builtins.replaceStrings [ "sha256:" ] [ "" ] spec.base.manifest}";
    in
    lib.build system "image" "check-image" {
      inherit spec;
      manifest = pin + "/manifest.json";
      config = pin + "/config.json";
      index = pin + "/tree.json";
      wheels = ../tests/image/wheels;
      sources = ../tests/image;
    };
  deploy-rs = check "deploy-rs" { nodes = mapAttrs (_: plain) (merge (c: c.deploy.nodes // c.deployEach)); };
}
