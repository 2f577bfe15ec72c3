//! The table of a comparison.

use std::collections::BTreeMap;

/// Samples of one case, one per round.
#[derive(Debug, Default)]
pub struct Samples {
    rates: Vec<f64>,
    cpu: Vec<f64>,
    cached: Vec<f64>,
    /// Most memory of sender and receiver, bytes.
    pub peaks: [u64; 2],
}

impl Samples {
    /// Adds a round.
    pub fn add(&mut self, bytes: u64, seconds: f64, cpu_seconds: f64, cached: u64) {
        self.rates.push(bytes as f64 / 1e6 / seconds);
        self.cpu.push(cpu_seconds / (bytes as f64 / 1e9));
        self.cached.push(cached as f64 / 1_048_576.0);
    }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
}

/// Median of the ratios inside each round.
fn ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    median(&ours.iter().zip(theirs).map(|(a, b)| a / b).collect::<Vec<_>>())
}

/// Prints a comparison and the aims.
pub fn print(title: &str, cases: &[&str], samples: &BTreeMap<&str, Samples>) {
    println!("\n{title} (medians of {} rounds)", samples.values().next().map_or(0, |s| s.rates.len()));
    println!("{:<20} {:>8} {:>10} {:>12} {:>14} {:>16}", "", "MB/s", "x gcm", "CPU s/GB", "x gcm CPU", "Cached +- MiB");
    let Some(base) = samples.get("rsync ssh gcm") else { return };
    for case in cases {
        let Some(s) = samples.get(case) else { continue };
        println!(
            "{case:<20} {:>8.0} {:>10.2} {:>12.2} {:>14.2} {:>16.0}",
            median(&s.rates),
            ratio(&s.rates, &base.rates),
            median(&s.cpu),
            ratio(&s.cpu, &base.cpu),
            median(&s.cached)
        );
    }
    let Some(ours) = samples.get("ours") else { return };
    for (peer, aim) in [("rsync ssh gcm", 2.5), ("rsync daemon", 1.3), ("pump", 0.9)] {
        if let Some(peer_samples) = samples.get(peer) {
            println!("ours / {peer}: {:.2} (aim {aim})", ratio(&ours.rates, &peer_samples.rates));
        }
    }
    if let Some(sealed) = samples.get("ours sealed") {
        println!("sealed / rsync ssh gcm: {:.2} (aim 1.8)", ratio(&sealed.rates, &base.rates));
    }
    let [sender, receiver] = ours.peaks.map(|b| b / 1_048_576);
    println!("memory: sender {sender} MiB, receiver {receiver} MiB (aim 160 each)");
}
