//! `sparklane image serve`.

use std::process::ExitCode;

use camino::Utf8PathBuf;
use serde::Serialize;
use sparklane_oci::serve::Server;
use sparklane_oci::{Layout, OciError};

use super::common::{STORE, answer};

/// Serve a layout folder as a read-only registry on 127.0.0.1.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane image serve --layout /srv/images --port 5000")]
pub struct Args {
    /// Layout folder.
    #[arg(long, value_name = "DIR", default_value = STORE)]
    layout: Utf8PathBuf,
    /// Further layout folder with blobs that the first has not, e.g. the base's.
    #[arg(long, value_name = "DIR")]
    base: Vec<Utf8PathBuf>,
    /// Port [default: a free one]
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// Print the address as one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Listening {
    address: String,
}

/// Serves until it is ended.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    let start = || -> Result<Server, OciError> {
        let layout = args.base.iter().fold(Layout::open(&args.layout)?, |l, base| l.with_shared(base));
        Server::start(layout, args.port)
    };
    let (address, server) = match start() {
        Ok(server) => (Ok(Listening { address: server.address().to_string() }), Some(server)),
        Err(error) => (Err(error), None),
    };
    let code = answer(args.json, address, |l| format!("serving {} at {}", args.layout, l.address));
    if let Some(server) = server {
        server.wait();
    }
    Ok(code)
}
