# The flake's outputs.
{ self, nixpkgs, prebuilt, wheelhouse, ... }:
let
  inherit (builtins) attrValues filter foldl' listToAttrs mapAttrs;

  lib = import ./lib.nix { inherit prebuilt nixpkgs; };
  catalog = import ./catalog.nix { inherit prebuilt; };
  makeCluster = import ./cluster.nix { inherit lib makeImage; };
  clusters = mapAttrs (_: cluster: makeCluster { inherit cluster catalog compositions; }) catalog.clusters;

  # Compositions, by the image's name; `image-<lane>` is the one of the lane's image.
  makeImage = import ./image.nix { inherit lib wheelhouse; };
  compositions =
    let names = filter (n: builtins.pathExists (../images/compose + "/${n}.nix")) (builtins.attrNames catalog.images);
    in listToAttrs (map (name: { inherit name; value = import (../images/compose + "/${name}.nix"); }) names);
  imagesFor = lanes: compositions: system:
    let composed = filter (lane: compositions ? ${lanes.${lane}.image}) (builtins.attrNames lanes);
    in listToAttrs (map
      (lane: { name = "image-${lane}"; value = makeImage system compositions.${lanes.${lane}.image}; })
      composed);

  forSystems = systems: f: listToAttrs (map (name: { inherit name; value = f name; }) systems);
  merge = f: foldl' (a: b: a // b) { } (map f (attrValues clusters));
  builtHere = system: c: c.buildSystem == system;

  # `inputPrefix` leads to our inputs, seen from the flake that the apps deploy.
  appsFor = { flake, inputPrefix, catalog }: system:
    let
      drv = import ./apps.nix { inherit lib system catalog prebuilt wheelhouse flake inputPrefix; };
      app = name: description: {
        type = "app";
        program = "${drv}/bin/${name}";
        meta = { inherit description; };
      };
    in
    rec {
      default = sparklane;
      sparklane = app "sparklane" "the tool with all its commands";
      deploy = app "deploy" "bring all nodes to a lane, or leave all as they were";
      rollback = app "rollback" "return all nodes to a prior release";
      status = app "status" "what the nodes serve";
      releases = app "releases" "the cluster's numbered releases";
      plan = app "plan" "what a deploy would change";
      lane = app "lane" "list, show, check and compare lanes";
    };

  packagesFor = clusters: system:
    foldl' (a: c: a // c.packages) { sparklane = lib.tool system system; }
      (filter (builtHere system) (attrValues clusters));

  withDefault = set: set // { default = set.sparklane; };
in
{
  packages = forSystems lib.systems
    (system: withDefault (packagesFor clusters system) // imagesFor catalog.lanes compositions system);
  apps = forSystems lib.systems (appsFor { flake = "${self}"; inputPrefix = ""; inherit catalog; });
  checks = forSystems lib.systems (system: import ./checks.nix { inherit lib system catalog clusters; });
  # This flake is a set of examples: name the nodes, as `deploy .#lab-worker .#lab-head`.
  deploy.nodes = merge (c: c.deploy.nodes // c.deployEach);

  lib = {
    inherit catalog wheelhouse;

    # A user's own flake: `outputs = { self, sparklane, ... }: sparklane.lib.mkCluster { inherit self; cluster = import ./cluster.nix; }`.
    # `lanes`, `images` and `weights` add to the shipped ones; weights are texts of manifests. `input` is the name that
    # the flake gives this one. `imageSpecs` are compositions of images, by the image's name.
    mkCluster = { self, cluster, input ? "sparklane", lanes ? { }, images ? { }, weights ? { }, imageSpecs ? { } }:
      let
        own = catalog // {
          lanes = catalog.lanes // lanes;
          images = catalog.images // images;
          weights = catalog.weights // weights;
          clusters = { ${cluster.name} = cluster; };
        };
        specs = compositions // imageSpecs;
        made = { ${cluster.name} = makeCluster { inherit cluster; catalog = own; compositions = specs; }; };
      in
      {
        packages = forSystems lib.systems
          (system: withDefault (packagesFor made system) // imagesFor own.lanes specs system);
        apps = forSystems lib.systems (appsFor {
          flake = "${self}";
          inputPrefix = "${input}/";
          catalog = own;
        });
        checks = forSystems lib.systems (system:
          removeAttrs (import ./checks.nix { inherit lib system; catalog = own; clusters = made; }) [ "golden" ]);
        deploy.nodes = made.${cluster.name}.deploy.nodes;
        lib.catalog = own;
      };
  };

  templates.default = {
    path = ./template;
    description = "your own cluster on top of sparklane";
  };
}
# These look at nixpkgs as soon as they are evaluated, which `nix flake check` does.
// (if !lib.fromSource then { } else {
  devShells = forSystems lib.systems (system:
    let pkgs = nixpkgs.legacyPackages.${system};
    in {
      default = pkgs.mkShell {
        packages = with pkgs; [ cargo clippy rustfmt rustc nix ];
      };
    });
  formatter = forSystems lib.systems (system: nixpkgs.legacyPackages.${system}.nixfmt);
})
