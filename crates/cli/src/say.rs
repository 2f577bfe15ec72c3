//! `println!` and its kin for the whole program, of which none ends it: a reader that goes away (`| head`) must neither
//! abort a transaction half-way nor change an exit code. They stand in for std's, which panic then.

use std::fmt::Arguments;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

/// True once nobody reads stdout any more: what goes on only to be read may end.
pub fn unread() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

/// Writes to stdout.
pub fn out(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    if out.write_fmt(text).and_then(|()| out.flush()).is_err() {
        CLOSED.store(true, Ordering::Relaxed);
    }
}

/// Writes to stderr.
pub fn err(text: Arguments<'_>) {
    // Nobody is left to be told that it failed.
    let _unread = std::io::stderr().lock().write_fmt(text);
}

macro_rules! println {
    ($($what:tt)*) => {
        $crate::say::out(format_args!("{}\n", format_args!($($what)*)))
    };
}

macro_rules! print {
    ($($what:tt)*) => {
        $crate::say::out(format_args!($($what)*))
    };
}

macro_rules! eprintln {
    ($($what:tt)*) => {
        $crate::say::err(format_args!("{}\n", format_args!($($what)*)))
    };
}
