# The flake's outputs.
{ self, nixpkgs, prebuilt, wheelhouse, ... }:
let
  inherit (builtins) attrValues filter foldl' listToAttrs mapAttrs;

  lib = import ./lib.nix { inherit prebuilt nixpkgs; };
  catalog = import ./catalog.nix { inherit prebuilt; };
  makeCluster = import ./cluster.nix { inherit lib; };
  clusters = mapAttrs (_: cluster: makeCluster { inherit cluster catalog; specs = compositions; compose = composer shipped; }) catalog.clusters;

  # Compositions, by the image's name; `image-<lane>` is the one of the lane's image.
  makeImage = import ./image.nix { inherit lib wheelhouse; };
  compositions =
    let names = filter (n: builtins.pathExists (../images/compose + "/${n}.nix")) (builtins.attrNames catalog.images);
    in listToAttrs (map (name: { inherit name; value = import (../images/compose + "/${name}.nix"); }) names);
  ownPins = [ ../images/pins ];
  # A composition of these by its name, on a system.
  composer = { specs, catalog, pins }: system: name:
    makeImage { inherit system pins; spec = specs.${name}; image = catalog.images.${name} or { }; };
  imagesFor = { specs, catalog, pins }@from: system:
    let composed = filter (lane: specs ? ${catalog.lanes.${lane}.image or ""}) (builtins.attrNames catalog.lanes);
    in listToAttrs (map
      (lane: { name = "image-${lane}"; value = composer from system catalog.lanes.${lane}.image; })
      composed);
  shipped = { specs = compositions; inherit catalog; pins = ownPins; };

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
    (system: withDefault (packagesFor clusters system) // imagesFor shipped system);
  apps = forSystems lib.systems (appsFor { flake = "${self}"; inputPrefix = ""; inherit catalog; });
  checks = forSystems lib.systems (system: import ./checks.nix { inherit lib system catalog clusters; });
  # This flake is a set of examples: name the nodes, as `deploy .#lab-worker .#lab-head`.
  deploy.nodes = merge (c: c.deploy.nodes // c.deployEach);

  lib = {
    inherit catalog wheelhouse;
    # `nix eval --json .#lib.imageSpecs.NAME` is what `sparklane image build` takes.
    imageSpecs = compositions;

    # A user's own flake: `outputs = { self, sparklane, ... }: sparklane.lib.mkCluster { inherit self; cluster = import ./cluster.nix; }`.
    # `lanes`, `images` and `weights` add to the shipped ones; weights are texts of manifests. `input` is the name that
    # the flake gives this one. `imageSpecs` are compositions of images, by the image's name; `pins` is a folder of pins.
    mkCluster = { self, cluster, input ? "sparklane", lanes ? { }, images ? { }, weights ? { }, imageSpecs ? { }, pins ? null }:
      let
        own = catalog // {
          lanes = catalog.lanes // lanes;
          images = catalog.images // images;
          weights = catalog.weights // weights;
          clusters = { ${cluster.name} = cluster; };
        };
        from = {
          specs = compositions // imageSpecs;
          catalog = own;
          pins = (if pins == null then [ ] else [ pins ]) ++ ownPins;
        };
        made.${cluster.name} =
          makeCluster { inherit cluster; catalog = own; inherit (from) specs; compose = composer from; };
      in
      {
        packages = forSystems lib.systems
          (system: withDefault (packagesFor made system) // imagesFor from system);
        apps = forSystems lib.systems (appsFor {
          flake = "${self}";
          inputPrefix = "${input}/";
          catalog = own;
        });
        checks = forSystems lib.systems (system:
          removeAttrs (import ./checks.nix { inherit lib system; catalog = own; clusters = made; }) [ "golden" ]);
        deploy.nodes = made.${cluster.name}.deploy.nodes;
        lib = { catalog = own; imageSpecs = from.specs; };
      };
  };

  templates.default = {
    path = ./template;
    description = "your own cluster on top of sparklane";
  };

  # Attributes of their own, not a condition around them: what this set holds must be known without a look at `prebuilt`,
  # whose place is relative to this flake itself (Nix 2.26 would not come to an end).
  devShells = if !lib.fromSource then { } else forSystems lib.systems (system:
    let pkgs = nixpkgs.legacyPackages.${system};
    in {
      default = pkgs.mkShell {
        packages = with pkgs; [ cargo clippy rustfmt rustc nix ];
      };
    });
  formatter =
    if !lib.fromSource then { }
    else forSystems lib.systems (system: nixpkgs.legacyPackages.${system}.nixfmt);
}
