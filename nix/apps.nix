# bin/<name> for every app, and what they need to know about the flake they come from.
{ lib, system, catalog, flake, prebuilt, wheelhouse, inputPrefix }:
lib.build system "apps" "sparklane-apps" {
  tool = lib.tool system system;
  names = [ "sparklane" "deploy" "rollback" "status" "releases" "plan" "lane" ];
  inherit catalog flake;
  # What a later build of the same flake must override. A tool of nixpkgs has no prebuilt input.
  inputs = { "${inputPrefix}wheelhouse" = "${wheelhouse}"; }
    // (if lib.fromSource then { } else { "${inputPrefix}prebuilt" = "${prebuilt}"; });
}
