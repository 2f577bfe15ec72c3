//! What is being done, told as it happens. Work emits events; one observer owns the display (colmena's job monitor).

use std::sync::Mutex;

/// Hears what happens.
pub trait Observer: Sync {
    /// Something happens on a node, or (without one) on the control host.
    fn event(&self, node: Option<&str>, text: &str);
}

/// Lines on stderr, node first; the same line twice in a row is said once.
#[derive(Debug, Default)]
pub struct Lines {
    last: Mutex<String>,
}

impl Observer for Lines {
    fn event(&self, node: Option<&str>, text: &str) {
        let line = format!("{:<8} {text}", node.unwrap_or("control"));
        if let Ok(mut last) = self.last.lock()
            && *last != line
        {
            eprintln!("{line}");
            *last = line;
        }
    }
}

/// Says nothing.
#[derive(Debug, Clone, Copy)]
pub struct Quiet;

impl Observer for Quiet {
    fn event(&self, _node: Option<&str>, _text: &str) {}
}
