//! Nix builder side of the static binary.
