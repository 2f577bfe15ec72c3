# The closure of one node for one lane (design.md section 4).
{ lib }:
{ cluster, name, lane, image, weights, node, attempt ? 0 }:
let
  system = cluster.buildSystem;
in
lib.build system "generation" "generation-${cluster.name}-${name}-${node}" {
  laneName = name;
  inherit cluster lane image node;
  # The text of the manifest; null when the lane has none.
  inherit weights;
  tool = lib.tool system cluster.nodes.${node}.system;
  # Differs only in the checks, which build a generation twice and compare.
  inherit attempt;
}
