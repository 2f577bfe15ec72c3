//! Effects on one node.
