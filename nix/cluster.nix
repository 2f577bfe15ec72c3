# A cluster file and a catalogue become packages, a deploy-rs node list and checks.
{ lib }:
# `compose` makes the image of a composition in `specs` by its name, on a system.
{ cluster, catalog, specs, compose }:
let
  inherit (builtins) all attrNames concatMap elem filter foldl' isInt isList listToAttrs map;

  generation = import ./generation.nix { inherit lib; };
  # Nothing here may fail on a mistake in a lane's or the cluster's file: the tool reports those, with their keys.
  nodes = attrNames (cluster.nodes or { });
  buildSystem = cluster.buildSystem or "x86_64-linux";
  systemOf = node: cluster.nodes.${node}.system or buildSystem;
  nodeSystems = map systemOf nodes;
  seconds = value: if isInt value then value else 0;
  imageOf = lane: catalog.images.${lane.image or ""} or null;
  # Lanes whose image runs on these machines.
  fits = lane: all (s: elem s ((imageOf lane).systems or nodeSystems)) nodeSystems;
  # What this flake can build here: the builder's binary and the nodes' binaries must be there.
  buildable = all (s: elem s lib.systems) (nodeSystems ++ [ buildSystem ]);
  lanes = if buildable then filter (name: fits catalog.lanes.${name}) (attrNames catalog.lanes) else [ ];

  # What is ours of a composed image comes with the closure. An image that is not pinned is no input: nothing deploys it.
  composedOf = lane:
    if specs ? ${lane.image or ""} && (imageOf lane) ? manifest then compose buildSystem lane.image else null;

  weightsOf = lane:
    let name = lane.model.weights or null;
    in if name == null then null else { inherit name; text = catalog.weights.${name} or null; };

  pairs = concatMap (name: map (node: { inherit name node; lane = catalog.lanes.${name}; }) nodes) lanes;
  make = attempt: { name, lane, node }:
    generation {
      inherit cluster name lane node attempt buildSystem;
      nodeSystem = systemOf node;
      image = imageOf lane;
      composed = composedOf lane;
      weights = weightsOf lane;
    };
  named = f: listToAttrs (map (p: { name = "generation-${cluster.name}-${p.name}-${p.node}"; value = f p; }) pairs);

  sum = foldl' (a: b: a + b) 0;
  gateSecs = lane: if isList (lane.gates or null) then sum (map (g: seconds (g.budgetSecs or 0)) lane.gates) else 0;
  deployNode = { name, lane, node }: {
    hostname = cluster.nodes.${node}.host or node;
    profiles.sparklane = {
      path = make 0 { inherit name lane node; };
      user = "root";
      sshUser = cluster.ssh.user or "root";
      sshOpts = cluster.ssh.opts or [ ];
      profilePath = "/nix/var/nix/profiles/sparklane";
      # Must exist beforehand, and nobody else may write there.
      tempPath = "/run";
      # Our activation answers only once the gates have passed.
      activationTimeout = seconds (lane.budgets.startSecs or 0) + gateSecs lane;
      confirmTimeout = lane.budgets.confirmSecs or 30;
      autoRollback = true;
      magicRollback = true;
    };
  };
  deployNodes = chosen: prefix:
    listToAttrs (map
      (p: { name = "${prefix}${p.node}"; value = deployNode p; })
      (filter (p: p.name == chosen) pairs));
in
{
  inherit cluster buildable buildSystem;
  # { generation-<cluster>-<lane>-<node> = closure; }
  packages = named (make 0);
  # The same, built once more: the determinism check compares them.
  again = named (make 1);
  # deploy-rs's schema. Plain `deploy .` takes all nodes, so this is the default lane only: <cluster>-<node>.
  deploy.nodes = deployNodes (cluster.defaultLane or "") "${cluster.name}-";
  # The same for each lane, to be named on deploy-rs's command line: <cluster>-<lane>-<node>.
  deployEach = foldl' (a: name: a // deployNodes name "${cluster.name}-${name}-") { } lanes;
}
