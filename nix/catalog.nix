# Everything the flake defines, as data: `nix-instantiate --eval --strict --json nix/catalog.nix`.
# A lane, a cluster, an image or a weights manifest is one file in its folder.
{ prebuilt ? null }:
let
  inherit (builtins) attrNames filter fromJSON fromTOML listToAttrs match pathExists readDir readFile;

  # Files `<name><suffix>` of a folder, as { <name> = load path; }.
  folder = dir: suffix: load:
    let
      entries = readDir dir;
      stem = match "(.*)\\${suffix}";
      plain = filter (f: entries.${f} == "regular" && stem f != null) (attrNames entries);
    in
    listToAttrs (map (f: { name = builtins.head (stem f); value = load (dir + "/${f}"); }) plain);

  # Digests live beside an image once `sparklane image pin|adopt` knows them; the simulator's come with its binary.
  pin = name:
    let
      own = ../images + "/${name}.pin.json";
      sim = prebuilt + "/x86_64-linux/sim-image.json";
      digests = file: let pinned = fromJSON (readFile file); in { inherit (pinned) manifest config; };
    in
    if pathExists own then digests own
    else if name == "lab-sim" && prebuilt != null && pathExists sim then digests sim
    else { };

  images = folder ../images ".nix" import;
in
{
  lanes = folder ./lanes ".nix" import;
  clusters = folder ./clusters ".nix" import;
  images = builtins.mapAttrs (name: image: image // pin name) images;
  # Kept as text: its hash is what nodes and releases compare.
  weights = folder ./weights ".json" readFile;
  inherit (fromTOML (readFile ./lanes/deviations.toml)) deviations;
}
