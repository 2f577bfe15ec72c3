//! `cargo xtask bench`: figures that are stated, never checks.

mod deploy;
mod engine;
mod image;
mod layer;
mod memory;
mod peer;
mod report;
mod weights;

use std::process::ExitCode;

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Deploy, switch and roll back in the lab, beside stock deploy-rs 1.0.0 with the same closures.
    Deploy(deploy::Args),
    /// Kill, hang, cut and switch off what serves in the lab: seconds until it is noticed and until it serves again.
    Engine(engine::Args),
    /// Serve and pull an image on loopback, beside Debian's docker-registry and curl.
    Image(image::Args),
    /// Make the layer of ray[default] of its wheels, beside pip, tar, gzip -6 and sha256sum.
    Layer(layer::Args),
    /// Move weights over two rails between network namespaces, beside rsync, cp and a bare pump.
    Weights(weights::Args),
    /// One end of the bare pump.
    #[command(hide = true)]
    WeightsPump(weights::PumpArgs),
}

/// Measures and prints.
pub fn run(args: &Args) -> miette::Result<ExitCode> {
    match &args.what {
        What::Deploy(args) => deploy::run(args),
        What::Engine(args) => engine::run(args),
        What::Image(args) => image::run(args),
        What::Layer(args) => layer::run(args),
        What::Weights(args) => weights::run(args),
        What::WeightsPump(args) => weights::run_pump(args).map(|()| ExitCode::SUCCESS),
    }
}
