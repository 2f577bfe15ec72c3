//! Signals that end a program only after it had a say.

use tokio::signal::unix::{SignalKind, signal};

/// Calls `act` in a thread of its own whenever the signal comes, which then does not end the program by itself.
///
/// # Errors
/// The system's.
pub fn on(kind: SignalKind, act: impl Fn() + Send + 'static) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut stream = {
        let _inside = runtime.enter();
        signal(kind)?
    };
    std::thread::spawn(move || {
        while runtime.block_on(stream.recv()).is_some() {
            act();
        }
    });
    Ok(())
}
