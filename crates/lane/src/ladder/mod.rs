//! The ladder down from an engine that runs out of memory: one step at a time, each judged anew before the next.
//!
//! The order is that of the recipe (shorter sequences, fewer of them, a smaller share, no speculation). Where the KV cache
//! is pinned the share does not size it, so every step lowers the pin too; the recipe forgets that.

pub mod patch;

use serde::Serialize;

use crate::formulas::capture_size;
use crate::image::ImageSpec;
use crate::lane::{Lane, Serve};

/// One step down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rung {
    /// What it gives up, for people.
    pub what: String,
    /// The keys that it changes.
    pub changes: Vec<Change>,
}

/// A key of `serve` and its values as Nix writes them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Change {
    /// The key, without `serve.`.
    pub key: &'static str,
    /// Its value in the lane.
    pub old: String,
    /// Its next value; `null` leaves the flag out.
    pub new: String,
}

/// Longest sequence after the first step.
const SHORTER: u64 = 524_288;
/// Sequences at once after the second and the third.
const FEWER: [u32; 2] = [4, 1];
/// Share of the memory after the fourth.
const SHARE: f64 = 0.80;

/// The lane's next step down; none when the ladder ends.
#[must_use]
pub fn next(lane: &Lane, image: &ImageSpec) -> Option<Rung> {
    let serve = &lane.serve;
    let mut changes = Vec::new();
    let mut change = |key, old: String, new: String| changes.push(Change { key, old, new });
    let speculates = serve.speculative_config.is_some();
    // The pin's part that stays, in quarters. A half keeps as many longest sequences as before, as those are half as long.
    let (what, quarters) = if let Some(len) = serve.max_model_len.filter(|len| *len > SHORTER) {
        change("maxModelLen", len.to_string(), SHORTER.to_string());
        (format!("sequences of at most {SHORTER} tokens"), 2)
    } else if let Some((seqs, fewer)) =
        serve.max_num_seqs.and_then(|n| Some((n, FEWER.into_iter().find(|fewer| *fewer < n)?)))
    {
        change("maxNumSeqs", seqs.to_string(), fewer.to_string());
        if let (Some(old), Some(new)) = (serve.max_cudagraph_capture_size, graphs(serve, image, fewer))
            && new < u64::from(old)
        {
            change("maxCudagraphCaptureSize", old.to_string(), new.to_string());
        }
        (format!("{fewer} sequences at once"), 3)
    } else if let Some(share) = serve.gpu_memory_utilization.filter(|share| *share > SHARE) {
        change("gpuMemoryUtilization", share.to_string(), format!("{SHARE:.2}"));
        (format!("a share of {SHARE:.2} of the memory"), 3)
    } else if speculates {
        change("speculativeConfig", "set".to_owned(), "null".to_owned());
        ("no drafted tokens".to_owned(), 4)
    } else {
        return None;
    };
    if let Some(pinned) = serve.kv_cache_memory_bytes.filter(|_| quarters < 4) {
        let block = image.kv_block_bytes.unwrap_or(1).max(1);
        let kept = (pinned / 4).saturating_mul(quarters) / block * block;
        change("kvCacheMemoryBytes", pinned.to_string(), kept.to_string());
    }
    Some(Rung { what, changes })
}

/// Steps that still fit a CUDA graph; larger ones would be captured for nothing.
fn graphs(serve: &Serve, image: &ImageSpec, seqs: u32) -> Option<u64> {
    let drafted = serve.speculative_config.as_ref().map_or(0, |s| s.num_speculative_tokens);
    image.vllm_series().map(|series| capture_size(series, seqs, drafted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::fixture::case;

    fn keys(rung: &Rung) -> Vec<(&str, &str)> {
        rung.changes.iter().map(|c| (c.key, c.new.as_str())).collect()
    }

    #[test]
    fn one_step_at_a_time_to_the_end() {
        let mut case = case();
        case.image.kv_block_bytes = Some(1000);
        let serve = &mut case.lane.serve;
        serve.max_model_len = Some(1_048_576);
        serve.max_num_seqs = Some(12);
        serve.max_cudagraph_capture_size = Some(96);
        serve.kv_cache_memory_bytes = Some(20_000_000);
        let step = |case: &crate::rules::fixture::Case| next(&case.lane, &case.image);

        let rung = step(&case).unwrap();
        assert_eq!(keys(&rung), [("maxModelLen", "524288"), ("kvCacheMemoryBytes", "10000000")]);
        case.lane.serve.max_model_len = Some(SHORTER);
        case.lane.serve.kv_cache_memory_bytes = Some(10_000_000);

        let rung = step(&case).unwrap();
        let pin = ("kvCacheMemoryBytes", "7500000");
        assert_eq!(keys(&rung), [("maxNumSeqs", "4"), ("maxCudagraphCaptureSize", "32"), pin]);
        case.lane.serve.max_num_seqs = Some(4);
        case.lane.serve.kv_cache_memory_bytes = Some(7_500_999);
        assert_eq!(keys(&step(&case).unwrap())[2], ("kvCacheMemoryBytes", "5625000"), "whole blocks");
        case.lane.serve.max_num_seqs = Some(1);
        case.lane.serve.kv_cache_memory_bytes = None;

        assert_eq!(keys(&step(&case).unwrap()), [("gpuMemoryUtilization", "0.80")]);
        case.lane.serve.gpu_memory_utilization = Some(0.8);
        case.lane.serve.kv_cache_memory_bytes = Some(1);
        assert_eq!(
            keys(&step(&case).unwrap()),
            [("speculativeConfig", "null")],
            "the drafter's memory is not the pin's"
        );
        case.lane.serve.speculative_config = None;
        assert_eq!(step(&case), None);
    }
}
