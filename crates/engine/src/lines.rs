//! Cutting a byte stream into log lines. Progress bars end a state with `\r`, so both ends count.

/// Longest line kept whole; the rest of a longer one comes as the next line.
const MAX_LINE: usize = 16 * 1024;

/// Collects bytes until a line is complete.
#[derive(Debug, Default)]
pub struct LineCutter {
    pending: Vec<u8>,
}

impl LineCutter {
    /// Takes bytes and hands every completed, non-empty line to `sink`.
    pub fn push(&mut self, bytes: &[u8], sink: &mut dyn FnMut(&str)) {
        for &byte in bytes {
            if byte == b'\n' || byte == b'\r' || self.pending.len() >= MAX_LINE {
                self.flush(sink);
            }
            if byte != b'\n' && byte != b'\r' {
                self.pending.push(byte);
            }
        }
    }

    /// Hands out what is left.
    pub fn flush(&mut self, sink: &mut dyn FnMut(&str)) {
        if !self.pending.is_empty() {
            sink(&String::from_utf8_lossy(&self.pending));
            self.pending.clear();
        }
    }
}

/// The last lines of a log, for a failure report.
#[derive(Debug)]
pub struct Tail {
    lines: std::collections::VecDeque<String>,
    keep: usize,
}

impl Tail {
    /// Keeps the last `keep` lines.
    #[must_use]
    pub fn new(keep: usize) -> Self {
        Self { lines: std::collections::VecDeque::with_capacity(keep), keep }
    }

    /// Adds a line.
    pub fn push(&mut self, line: &str) {
        if self.lines.len() == self.keep {
            self.lines.pop_front();
        }
        self.lines.push_back(line.to_owned());
    }

    /// The kept lines, oldest first.
    #[must_use]
    pub fn lines(&self) -> Vec<&str> {
        self.lines.iter().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_at_both_ends_and_bounded() {
        let mut got = vec![];
        let mut cutter = LineCutter::default();
        for part in [&b"a\nb"[..], b"c\r 50%\r\n", b"\xff\n", b"tail"] {
            cutter.push(part, &mut |l| got.push(l.to_owned()));
        }
        cutter.flush(&mut |l| got.push(l.to_owned()));
        assert_eq!(got, ["a", "bc", " 50%", "\u{fffd}", "tail"]);
        let mut longest = 0;
        cutter.push(&vec![b'x'; 100_000], &mut |l| longest = longest.max(l.len()));
        assert_eq!(longest, MAX_LINE);
    }

    #[test]
    fn tail_keeps_the_last() {
        let mut tail = Tail::new(2);
        for l in ["1", "2", "3"] {
            tail.push(l);
        }
        assert_eq!(tail.lines(), ["2", "3"]);
    }
}
