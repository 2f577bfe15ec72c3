# `over defaults lane`: a lane's own keys over its base's, sets key by key, anything else whole. A base takes no
# arguments, so every key a lane writes, a mistyped one too, reaches the validator under its place in the lane.
let
  over = defaults: lane:
    if builtins.isAttrs defaults && builtins.isAttrs lane then
      defaults // builtins.mapAttrs (key: own: if defaults ? ${key} then over defaults.${key} own else own) lane
    else
      lane;
in
over
