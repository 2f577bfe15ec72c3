//! Memory of a node: enough before the start ([`gate`]), who the kernel would kill first ([`oom`]), whom it killed
//! ([`kmsg`]), and whether it swaps ([`swap`]). On these machines the GPU's memory is the host's.

pub mod gate;
pub mod kmsg;
pub mod oom;
pub mod swap;

/// The unit's exit code when the memory was not free in time. systemd starts it again.
pub const EXIT_MEMORY: u8 = 72;
