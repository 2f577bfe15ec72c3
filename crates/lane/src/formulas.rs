//! The few sums that decide whether a lane makes sense. Sources: the kits' tables and vLLM's own defaults.

/// Largest batch that vLLM records as a CUDA graph by itself.
const CAPTURE_LIMIT: u64 = 512;

/// The capture size below which full decode steps leave CUDA graphs: every sequence brings its drafted tokens and one
/// more; vLLM 0.25 and later double it and stop at 512.
#[must_use]
pub fn capture_size(series: (u32, u32), seqs: u32, draft_tokens: u32) -> u64 {
    let step = u64::from(seqs).saturating_mul(u64::from(draft_tokens) + 1);
    if series >= (0, 25) { step.saturating_mul(2).min(CAPTURE_LIMIT) } else { step }
}

/// Whole blocks in a pinned KV cache, and the bytes that no block uses.
#[must_use]
pub fn kv_blocks(pinned: u64, block: u64) -> Option<(u64, u64)> {
    Some((pinned.checked_div(block)?, pinned.checked_rem(block)?))
}

/// Bytes that one rank may use of its node's memory.
#[must_use]
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn memory_budget(memory: u64, utilization: f64) -> u64 {
    // Sizes of machines fit a double's 53 bits; a cast from float saturates.
    (memory as f64 * utilization) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn capture_sizes_of_the_kits() {
        for (series, seqs, draft, expected) in [
            ((0, 25), 12, 3, 96),
            ((0, 26), 12, 2, 72),
            ((0, 26), 12, 5, 144),
            ((0, 25), 100, 3, 512),
            ((0, 25), 6, 7, 96),
            ((0, 25), 8, 3, 64),
            ((0, 21), 12, 3, 48),
        ] {
            assert_eq!(capture_size(series, seqs, draft), expected, "{series:?} {seqs} {draft}");
        }
    }

    #[test]
    fn the_kits_pin_is_twenty_thousand_blocks() {
        assert_eq!(kv_blocks(21_316_272_128, 1_065_792), Some((20_000, 432_128)));
        assert_eq!(kv_blocks(1, 0), None);
    }

    proptest! {
        #[test]
        fn capture_never_exceeds_its_limit_and_never_shrinks(seqs: u32, draft: u32, minor in 25u32..40) {
            let size = capture_size((0, minor), seqs, draft);
            prop_assert!(size <= 512);
            prop_assert!(capture_size((0, minor), seqs.saturating_add(1), draft) >= size);
        }

        #[test]
        fn blocks_and_rest_make_the_pin(pinned: u64, block in 1u64..) {
            let (blocks, rest) = kv_blocks(pinned, block).unwrap();
            prop_assert!(rest < block);
            prop_assert_eq!(blocks * block + rest, pinned);
        }

        #[test]
        fn a_budget_is_a_part_of_the_memory(memory in 0u64..1 << 50, share in 0.0f64..=1.0) {
            prop_assert!(memory_budget(memory, share) <= memory);
        }
    }
}
