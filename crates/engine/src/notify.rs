//! Telling systemd what the service is doing.

use std::time::Duration;

/// Where state changes are reported.
pub trait Notify {
    /// One line for `systemctl status`.
    fn status(&self, line: &str);
    /// The unit counts as started.
    fn ready(&self);
    /// The unit is stopping.
    fn stopping(&self);
    /// The start may take this much longer from now.
    fn extend(&self, by: Duration);
}

/// Tells systemd that the event loop turns, three times in each period that the unit asks for (`WatchdogSec=`); ends at once
/// where it asks for none.
pub async fn keep_alive() {
    let Some(period) = sd_notify::watchdog_enabled() else { return };
    let mut ticks = tokio::time::interval(period / 3);
    loop {
        ticks.tick().await;
        Systemd::send(&[sd_notify::NotifyState::Watchdog]);
    }
}

/// systemd's notification socket; silent when there is none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Systemd;

impl Systemd {
    fn send(states: &[sd_notify::NotifyState<'_>]) {
        // Without a socket this is Ok; a failing one must not stop the engine.
        if let Err(error) = sd_notify::notify(states) {
            tracing::warn!(%error, "systemd did not take a notification");
        }
    }
}

impl Notify for Systemd {
    fn status(&self, line: &str) {
        Self::send(&[sd_notify::NotifyState::Status(line)]);
    }

    fn ready(&self) {
        Self::send(&[sd_notify::NotifyState::Ready]);
    }

    fn stopping(&self) {
        Self::send(&[sd_notify::NotifyState::Stopping]);
    }

    fn extend(&self, by: Duration) {
        let micros = u32::try_from(by.as_micros()).unwrap_or(u32::MAX);
        Self::send(&[sd_notify::NotifyState::ExtendTimeoutUsec(micros)]);
    }
}
