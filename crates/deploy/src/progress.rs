//! What is being done, told as it happens. Work emits events; one observer owns the display (colmena's job monitor).

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Mutex;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

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
            // Nobody may read it, and that must not end what it tells of.
            let _unread = writeln!(std::io::stderr().lock(), "{line}");
            *last = line;
        }
    }
}

/// On a terminal: what happened scrolls by, and below it each node's present work with the time it takes.
#[derive(Debug)]
pub struct Bars {
    all: MultiProgress,
    nodes: Mutex<BTreeMap<String, ProgressBar>>,
    lines: Mutex<String>,
}

impl Bars {
    fn new() -> Self {
        Self { all: MultiProgress::new(), nodes: Mutex::default(), lines: Mutex::default() }
    }

    fn bar(&self, node: &str) -> ProgressBar {
        // A line at the bottom; the style is a constant that the library accepts.
        let style = ProgressStyle::with_template("{spinner} {prefix:<8} {wide_msg} {elapsed}");
        let bar = ProgressBar::new_spinner().with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
        let bar = self.all.add(bar.with_prefix(node.to_owned()));
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    }
}

/// A wait says how long it goes on; a new number is no new event.
fn without_countdown(text: &str) -> &str {
    text.rsplit_once(" (").filter(|(_, end)| end.ends_with(" s left)")).map_or(text, |(start, _)| start)
}

impl Observer for Bars {
    fn event(&self, node: Option<&str>, text: &str) {
        let node = node.unwrap_or("control");
        let line = format!("{node:<8} {}", without_countdown(text));
        if let Ok(mut last) = self.lines.lock()
            && *last != line
        {
            // A terminal that is gone loses its lines, not its deployment.
            let _shown = self.all.println(&line);
            *last = line;
        }
        if let Ok(mut nodes) = self.nodes.lock() {
            let bar = nodes.entry(node.to_owned()).or_insert_with(|| self.bar(node));
            bar.reset_elapsed();
            bar.set_message(text.to_owned());
        }
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        let _cleared = self.all.clear();
    }
}

/// The display that fits: nothing for programs, bars on a terminal, plain lines elsewhere.
#[must_use]
pub fn fitting(quiet: bool) -> Box<dyn Observer> {
    if quiet {
        return Box::new(Quiet);
    }
    let bars = Bars::new();
    // A dumb terminal would swallow the lines with the bars.
    if std::io::stderr().is_terminal() && !bars.all.is_hidden() { Box::new(bars) } else { Box::new(Lines::default()) }
}

/// Says nothing.
#[derive(Debug, Clone, Copy)]
pub struct Quiet;

impl Observer for Quiet {
    fn event(&self, _node: Option<&str>, _text: &str) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_countdown_is_no_news() {
        assert_eq!(without_countdown("gate ready: starting (59 s left)"), "gate ready: starting");
        assert_eq!(without_countdown("gate ready: 16 tokens"), "gate ready: 16 tokens");
        assert_eq!(without_countdown("profile (x) -> y"), "profile (x) -> y");
    }
}
