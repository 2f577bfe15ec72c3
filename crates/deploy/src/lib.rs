//! Control host side of a deployment.
