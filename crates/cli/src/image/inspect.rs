//! `sparklane image inspect`.

use std::process::ExitCode;

use sparklane_oci::OciError;
use sparklane_oci::inspect::{LayerRow, Summary, inspect};

use super::common::{answer, short, size};
use super::look::{Which, choose};

/// Show an image of a layout folder: digests, config, layers and what made them.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sparklane image inspect --layout result
  sparklane image inspect vllm --layout /srv/images --json")]
pub struct Args {
    /// Name or manifest digest of the image [default: the only one]
    image: Option<String>,
    #[command(flatten)]
    which: Which,
    /// Print one JSON object on stdout.
    #[arg(long)]
    json: bool,
}

/// Runs it.
///
/// # Errors
/// Never; failures are exit codes with a line.
pub fn run(args: Args) -> miette::Result<ExitCode> {
    let look = || -> Result<Summary, OciError> {
        let layout = args.which.open()?;
        inspect(&layout, &choose(&layout, args.image.as_deref())?)
    };
    Ok(answer(args.json, look(), text))
}

fn text(s: &Summary) -> String {
    let mut out = format!(
        "manifest    {}\nconfig      {}\ntype        {}\nplatform    {}\ncreated     {}\nsize        {}\n",
        s.manifest,
        s.config,
        s.media_type,
        s.platform,
        s.created.as_deref().unwrap_or("-"),
        size(s.size)
    );
    out += &format!("entrypoint  {:?}\ncmd         {:?}\n", s.entrypoint, s.cmd);
    s.env.iter().for_each(|e| out += &format!("env         {e}\n"));
    for (i, layer) in s.layers.iter().enumerate() {
        out += &line(i, layer);
    }
    out.trim_end().to_owned()
}

fn line(place: usize, layer: &LayerRow) -> String {
    let by: String = layer.created_by.as_deref().unwrap_or("-").chars().take(60).collect();
    let who = if layer.ours { "ours" } else { "base" };
    let here = if layer.here { "" } else { ", not here" };
    format!("{place:>5} {who}  {} {:>10}{here}  {by}\n", short(&layer.digest), size(layer.size))
}
