# bin/<name> for every app, and what they need to know about the flake they come from.
{ lib, system, catalog, flake, prebuilt }:
lib.build system "apps" "sparklane-apps" {
  tool = lib.tool system system;
  names = [ "sparklane" "deploy" "rollback" "status" "releases" "plan" "lane" ];
  inherit catalog flake prebuilt;
}
