# The closure of one node for one lane (design.md section 4).
{ lib }:
{ cluster, name, lane, image, composed, weights, node, buildSystem, nodeSystem, attempt ? 0 }:
lib.build buildSystem "generation" "generation-${cluster.name}-${name}-${node}" {
  laneName = name;
  inherit cluster lane image node;
  # A layout with what is ours of the image; null when the image is whole elsewhere.
  inherit composed;
  # The text of the manifest; null when the lane has none.
  inherit weights;
  tool = lib.tool buildSystem nodeSystem;
  # Differs only in the checks, which build a generation twice and compare.
  inherit attempt;
}
