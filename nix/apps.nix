# bin/<name> for every app, and what they need to know about the flake they come from.
{ lib, system, catalog, flake, prebuilt, prebuiltInput }:
lib.build system "apps" "sparklane-apps" {
  tool = lib.tool system system;
  names = [ "sparklane" "deploy" "rollback" "status" "releases" "plan" "lane" ];
  inherit catalog flake prebuiltInput;
  # What a later build of the same flake must override; null when the tool came from nixpkgs.
  prebuilt = if lib.fromSource then null else "${prebuilt}";
}
