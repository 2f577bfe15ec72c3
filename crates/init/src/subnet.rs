//! IPv4 subnets, as far as rails need them.

use std::fmt;
use std::net::Ipv4Addr;

/// A subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subnet {
    base: u32,
    prefix: u8,
}

impl Subnet {
    /// The subnet of an address; a prefix beyond 32 counts as 32.
    #[must_use]
    pub fn of(address: Ipv4Addr, prefix: u8) -> Self {
        let prefix = prefix.min(32);
        Self { base: address.to_bits() & mask(prefix), prefix }
    }

    /// Prefix length.
    #[must_use]
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// True when some address is in both.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        let mask = mask(self.prefix.min(other.prefix));
        self.base & mask == other.base & mask
    }

    /// The `n`th host's address, counted from 1; `None` beyond the last.
    #[must_use]
    pub fn host(self, n: u32) -> Option<Ipv4Addr> {
        let last = !mask(self.prefix);
        (n > 0 && n < last).then(|| Ipv4Addr::from_bits(self.base + n))
    }
}

impl fmt::Display for Subnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv4Addr::from_bits(self.base), self.prefix)
    }
}

fn mask(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0)
}

/// Subnets for rails that nobody may have yet, the customary ones first.
pub fn candidates() -> impl Iterator<Item = Subnet> {
    let of = |a: u8, b: u8| (0..=u8::MAX).map(move |c| Subnet::of(Ipv4Addr::new(a, b, c, 0), 24));
    of(10, 0).chain(of(192, 168).skip(177)).chain(of(172, 31))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_subnet_holds_its_hosts_and_overlaps_itself(bits: u32, prefix in 0u8..40, n in 0u32..300) {
            let subnet = Subnet::of(Ipv4Addr::from_bits(bits), prefix);
            prop_assert!(subnet.overlaps(subnet));
            if let Some(host) = subnet.host(n) {
                prop_assert_eq!(Subnet::of(host, prefix), subnet);
                prop_assert!(subnet.overlaps(Subnet::of(host, 32)));
            }
        }
    }

    #[test]
    fn neighbours_do_not_overlap() {
        let of = |last: [u8; 4], prefix| Subnet::of(Ipv4Addr::from(last), prefix);
        assert!(!of([10, 0, 0, 1], 24).overlaps(of([10, 0, 1, 1], 24)));
        assert!(of([10, 0, 0, 1], 23).overlaps(of([10, 0, 1, 1], 24)));
        assert_eq!(
            (of([10, 0, 0, 0], 30).host(2), of([10, 0, 0, 0], 30).host(3)),
            (Some(Ipv4Addr::new(10, 0, 0, 2)), None)
        );
    }
}
