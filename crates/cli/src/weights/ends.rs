//! The two ends of a transfer as processes that ssh starts.

use std::process::ExitCode;

use sparklane_weights::WeightsError;
use sparklane_weights::agent::{self, Event, PullRequest, ServeRequest};

/// Answers receivers.
///
/// # Errors
/// As [`agent::serve`].
pub fn serve() -> Result<ExitCode, WeightsError> {
    let (request, stop) = agent::request::<ServeRequest>()?;
    agent::serve(&request, &stop, &agent::to_stdout)?;
    Ok(ExitCode::SUCCESS)
}

/// Receives.
///
/// # Errors
/// As [`agent::pull`].
pub fn pull() -> Result<ExitCode, WeightsError> {
    let (request, stop) = agent::request::<PullRequest>()?;
    let receipt = agent::pull(&request, &stop, &agent::to_stdout)?;
    agent::to_stdout(&Event::Receipt(Box::new(receipt)));
    Ok(ExitCode::SUCCESS)
}
