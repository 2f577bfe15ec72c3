//! Gzip members whose every byte is decided here: a fixed header (R13) and a small encoder (fixed Huffman codes, matches
//! found by one table), so that no version of a compressor changes a layer. The encoder's output is part of a layer's
//! identity: golden tests hold it.

use flate2::Crc;

/// Header of every member: deflate, no flags, no time, no extra flags, system unknown (R13).
pub const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

/// Most bytes of one stored block (RFC 1951, 3.2.4).
pub const STORED: usize = 65_535;

/// What follows the deflate stream of a member: CRC-32 and size modulo 2^32 of the bytes inside (RFC 1952).
#[must_use]
pub fn trailer(crc32: u32, size: u64) -> [u8; 8] {
    let mut trailer = [0; 8];
    trailer[..4].copy_from_slice(&crc32.to_le_bytes());
    trailer[4..].copy_from_slice(&((size & 0xffff_ffff) as u32).to_le_bytes());
    trailer
}

/// Head of a stored block of at most [`STORED`] bytes that begins at a byte boundary.
#[must_use]
pub fn stored_head(length: u16, last: bool) -> [u8; 5] {
    let [a, b] = length.to_le_bytes();
    [u8::from(last), a, b, !a, !b]
}

/// Makes members of bytes in memory. Keeps its table between members; what it writes depends on the bytes alone.
#[derive(Debug)]
pub struct Encoder {
    last: Vec<u32>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { last: vec![NONE; 1 << TABLE_BITS] }
    }
}

const TABLE_BITS: u32 = 12;
const NONE: u32 = u32::MAX;
const WINDOW: usize = 32_768;
const SHORTEST: usize = 3;
const LONGEST: usize = 258;

impl Encoder {
    /// Appends one member that holds `data` to `out`: Huffman codes, or stored blocks where those are shorter.
    pub fn member(&mut self, data: &[u8], out: &mut Vec<u8>) {
        out.extend(HEADER);
        let begin = out.len();
        self.fixed(data, out);
        let stored = data.len() + 5 * data.len().div_ceil(STORED).max(1);
        if out.len() - begin > stored {
            out.truncate(begin);
            store(data, out);
        }
        let mut crc = Crc::new();
        crc.update(data);
        out.extend(trailer(crc.sum(), data.len() as u64));
    }

    /// One block of fixed Huffman codes (RFC 1951, 3.2.6). Takes the newest earlier place with the same hash, greedily.
    fn fixed(&mut self, data: &[u8], out: &mut Vec<u8>) {
        self.last.fill(NONE);
        let mut bits = Bits { out, held: 0, count: 0 };
        bits.put(0b011, 3);
        let mut at = 0;
        while at < data.len() {
            let length = match self.see(data, at) {
                Some((distance, length)) => {
                    bits.length(length);
                    bits.distance(distance);
                    length
                }
                None => {
                    bits.symbol(u32::from(data[at]));
                    1
                }
            };
            for inside in at + 1..at + length {
                self.note(data, inside);
            }
            at += length;
        }
        bits.symbol(256);
        bits.finish();
    }

    /// The match at `at`, as distance and length, after which `at` is known to the table.
    fn see(&mut self, data: &[u8], at: usize) -> Option<(usize, usize)> {
        let earlier = self.note(data, at)?;
        let distance = at - earlier;
        if distance > WINDOW {
            return None;
        }
        let most = LONGEST.min(data.len() - at);
        let length = (0..most).take_while(|i| data[earlier + i] == data[at + i]).count();
        (length >= SHORTEST).then_some((distance, length))
    }

    /// Puts `at` in the table; gives who was there.
    fn note(&mut self, data: &[u8], at: usize) -> Option<usize> {
        let three = data.get(at..at + SHORTEST)?;
        let word = u32::from_le_bytes([three[0], three[1], three[2], 0]);
        let slot = (word.wrapping_mul(0x9e37_79b1) >> (32 - TABLE_BITS)) as usize;
        let now = u32::try_from(at).ok().filter(|n| *n != NONE)?;
        let earlier = std::mem::replace(self.last.get_mut(slot)?, now);
        (earlier != NONE).then_some(earlier as usize)
    }
}

fn store(data: &[u8], out: &mut Vec<u8>) {
    let mut pieces = data.chunks(STORED).peekable();
    if pieces.peek().is_none() {
        out.extend(stored_head(0, true));
    }
    while let Some(piece) = pieces.next() {
        // A piece has at most STORED bytes, which is the largest u16.
        out.extend(stored_head(u16::try_from(piece.len()).unwrap_or(u16::MAX), pieces.peek().is_none()));
        out.extend(piece);
    }
}

/// Length codes 257.. as first length and extra bits (RFC 1951, 3.2.5).
#[rustfmt::skip]
const LENGTHS: [(u16, u8); 29] = [
    (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0), (9, 0), (10, 0), (11, 1), (13, 1), (15, 1), (17, 1), (19, 2),
    (23, 2), (27, 2), (31, 2), (35, 3), (43, 3), (51, 3), (59, 3), (67, 4), (83, 4), (99, 4), (115, 4), (131, 5),
    (163, 5), (195, 5), (227, 5), (258, 0),
];

/// Distance codes 0.. as first distance and extra bits.
#[rustfmt::skip]
const DISTANCES: [(u16, u8); 30] = [
    (1, 0), (2, 0), (3, 0), (4, 0), (5, 1), (7, 1), (9, 2), (13, 2), (17, 3), (25, 3), (33, 4), (49, 4), (65, 5),
    (97, 5), (129, 6), (193, 6), (257, 7), (385, 7), (513, 8), (769, 8), (1025, 9), (1537, 9), (2049, 10), (3073, 10),
    (4097, 11), (6145, 11), (8193, 12), (12289, 12), (16385, 13), (24577, 13),
];

struct Bits<'a> {
    out: &'a mut Vec<u8>,
    held: u64,
    count: u32,
}

impl Bits<'_> {
    /// Bits of `value`, the lowest first.
    fn put(&mut self, value: u32, count: u32) {
        self.held |= u64::from(value) << self.count;
        self.count += count;
        while self.count >= 8 {
            self.out.push((self.held & 0xff) as u8);
            self.held >>= 8;
            self.count -= 8;
        }
    }

    /// A Huffman code: the highest bit first.
    fn code(&mut self, code: u32, count: u32) {
        self.put(code.reverse_bits() >> (32 - count), count);
    }

    fn symbol(&mut self, symbol: u32) {
        match symbol {
            0..=143 => self.code(0x30 + symbol, 8),
            144..=255 => self.code(0x190 + symbol - 144, 9),
            256..=279 => self.code(symbol - 256, 7),
            _ => self.code(0xc0 + symbol - 280, 8),
        }
    }

    fn length(&mut self, length: usize) {
        let (code, first, extra) = class(&LENGTHS, length);
        self.symbol(257 + code);
        self.put(length as u32 - first, extra);
    }

    fn distance(&mut self, distance: usize) {
        let (code, first, extra) = class(&DISTANCES, distance);
        self.code(code, 5);
        self.put(distance as u32 - first, extra);
    }

    fn finish(self) {
        if self.count > 0 {
            self.out.push((self.held & 0xff) as u8);
        }
    }
}

/// The last class that begins at or before `value`: its number, first value and extra bits.
fn class(classes: &[(u16, u8)], value: usize) -> (u32, u32, u32) {
    let code = classes.partition_point(|(first, _)| usize::from(*first) <= value).saturating_sub(1);
    let (first, extra) = classes[code];
    (code as u32, u32::from(first), u32::from(extra))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::MultiGzDecoder;
    use proptest::prelude::*;

    use super::*;

    fn member(data: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        Encoder::default().member(data, &mut out);
        out
    }

    fn decoded(bytes: &[u8]) -> Vec<u8> {
        let mut data = Vec::new();
        MultiGzDecoder::new(bytes).read_to_end(&mut data).unwrap();
        data
    }

    /// Golden: a change here changes every layer's digest.
    #[test]
    fn the_encoder_writes_the_bytes_it_always_wrote() {
        let data =
            [b"usr/lib/python3/a.py".as_slice(), &[0; 480], b"0000644\x000000000\0usr/lib/python3/b.py"].concat();
        let digest = crate::digest::of(&member(&data));
        assert_eq!(
            (member(&data).len(), digest.hex()),
            (60, "3790220b5815507f9ee272c25332c2dfbe23b12b83d22e66322a3839e9408bc3")
        );
        assert_eq!(&member(b"")[..10], HEADER);
    }

    #[test]
    fn every_length_and_distance_is_encoded() {
        for length in (3..=32).chain((33..600).step_by(7)).chain([257, 258, 259]) {
            let data = [b"abc".as_slice(), &vec![b'x'; length], b"abc"].concat();
            assert_eq!(decoded(&member(&data)), data);
        }
        for distance in (3..33_000).step_by(1009) {
            let noise: Vec<u8> = (0..distance as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            let data = [noise.as_slice(), &noise].concat();
            assert_eq!(decoded(&member(&data)), data);
        }
    }

    #[test]
    fn noise_is_stored() {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        let noise: Vec<u8> = (0..200_000).map(|_| next()).collect();
        assert_eq!(member(&noise).len(), noise.len() + 10 + 8 + 4 * 5);
        assert_eq!(decoded(&member(&noise)), noise);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_bytes_come_back_and_the_past_does_not_matter(
            before in proptest::collection::vec(any::<u8>(), 0..300),
            words in proptest::collection::vec(proptest::sample::select(vec!["abcd", "\0\0\0\0\0\0", "xyz", "q"]), 0..400),
            noise in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let data = [words.concat().as_bytes(), &noise].concat();
            let mut encoder = Encoder::default();
            encoder.member(&before, &mut Vec::new());
            let mut second = Vec::new();
            encoder.member(&data, &mut second);
            prop_assert_eq!(&second, &member(&data));
            prop_assert_eq!(decoded(&second), data);
        }
    }
}
