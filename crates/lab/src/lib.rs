//! Rehearsal lab.
