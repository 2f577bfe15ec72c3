//! Log lines in vLLM's form. vLLM's logger writes to standard output, its servers and tracebacks to standard error.

/// The process that a line is from.
#[derive(Debug, Clone, Copy)]
pub enum Who {
    /// The API server.
    Api,
    /// The engine's core.
    Core,
    /// A headless rank's main process.
    Main,
    /// A rank's worker before it knows its rank.
    Worker,
    /// A rank's worker.
    Rank(u32),
}

impl Who {
    fn name(self) -> String {
        match self {
            Self::Api => "APIServer".to_owned(),
            Self::Core => "EngineCore".to_owned(),
            Self::Main => "MainProcess".to_owned(),
            Self::Worker => "Worker".to_owned(),
            Self::Rank(rank) => format!("Worker_TP{rank}"),
        }
    }
}

/// One line of vLLM's logger: `(WHO pid=N) LEVEL MM-DD HH:MM:SS [file.py:N] text`.
fn line(who: Who, level: &str, place: &str, text: &str) -> String {
    #[expect(clippy::disallowed_methods, reason = "vLLM tells it")]
    let now = jiff::Timestamp::now().strftime("%m-%d %H:%M:%S");
    format!("({} pid={}) {level} {now} [{place}] {text}", who.name(), std::process::id())
}

/// A line of level INFO.
pub fn info(who: Who, place: &str, text: &str) {
    println!("{}", line(who, "INFO", place, text));
}

/// A line of level ERROR.
pub fn error(who: Who, place: &str, text: &str) {
    println!("{}", line(who, "ERROR", place, text));
}

/// A line of the HTTP server.
pub fn server(text: &str) {
    eprintln!("INFO:     {text}");
}
