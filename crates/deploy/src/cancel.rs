//! The operator's wish to stop. A transaction that is under way is then brought back on all nodes at once, rather than
//! left to its deadline, which on a Spark is many minutes away.

use std::sync::atomic::{AtomicBool, Ordering};

use sparklane_txn::Order;

use crate::error::DeployError;

static ASKED: AtomicBool = AtomicBool::new(false);

/// Why, for records and verdicts.
pub const WHY: &str = "interrupted by the operator";

/// Asks for the end; true when it was asked for before.
pub fn ask() -> bool {
    ASKED.swap(true, Ordering::Relaxed)
}

/// True once the end was asked for.
#[must_use]
pub fn asked() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Between two steps that change nothing that serves.
///
/// # Errors
/// Refused, once the end was asked for.
pub fn check() -> Result<(), DeployError> {
    if asked() { Err(DeployError::Refused(format!("{WHY}; nothing was changed"))) } else { Ok(()) }
}

/// True for an order that is not worth its wait any more. The way back, the commit once it was sent, and questions are.
#[must_use]
pub fn stops(order: &Order) -> bool {
    asked() && matches!(order, Order::Prepare | Order::Run { .. } | Order::Gate { .. } | Order::Vote)
}
