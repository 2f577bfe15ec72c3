//! What an answer to a blob request is worth. Pure: bytes are taken from a server only as far as its head agrees with what
//! was asked and what the manifest promised (facts section 10).

/// A parsed `Content-Range`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentRange {
    /// `bytes FIRST-LAST/TOTAL`.
    Bytes {
        /// Offset of the first byte.
        first: u64,
        /// Offset of the last byte.
        last: u64,
        /// Bytes of the whole.
        total: u64,
    },
    /// `bytes */TOTAL`, with which 416 tells the length.
    Unsatisfied {
        /// Bytes of the whole.
        total: u64,
    },
}

impl ContentRange {
    /// Parses the header's value strictly: one unit, decimal digits, an order that makes sense, a known total.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
        let total = number(total)?;
        if range == "*" {
            return Some(Self::Unsatisfied { total });
        }
        let (first, last) = range.split_once('-')?;
        let (first, last) = (number(first)?, number(last)?);
        (first <= last && last < total).then_some(Self::Bytes { first, last, total })
    }
}

/// What a `Range` of one part asks of `size` bytes: first and last offset, or an error when it lies outside. `None` for what
/// a server may ignore: another unit, several parts, no number (RFC 9110 section 14.2).
#[must_use]
pub fn first_range(text: &str, size: u64) -> Option<Result<(u64, u64), ()>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    if first.is_empty() {
        let suffix = number(last)?;
        return Some(if suffix == 0 || size == 0 { Err(()) } else { Ok((size - suffix.min(size), size - 1)) });
    }
    let first = number(first)?;
    let last = if last.is_empty() { u64::MAX } else { number(last)? };
    if last < first {
        return None;
    }
    Some(if first < size { Ok((first, last.min(size - 1))) } else { Err(()) })
}

/// Digits only: no sign, no space, no overflow.
fn number(text: &str) -> Option<u64> {
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// The head of an answer.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a> {
    /// HTTP status.
    pub status: u16,
    /// `Content-Range`.
    pub content_range: Option<&'a str>,
    /// `Content-Length`.
    pub content_length: Option<u64>,
    /// `Content-Encoding`.
    pub content_encoding: Option<&'a str>,
}

/// What to do with the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Append it at the offset that was asked for.
    Append,
    /// It is the whole blob: drop what is here and begin anew.
    Restart,
    /// There is nothing to come: what is here is all, or wrong.
    Complete,
    /// What is here is of no use; ask for the whole blob.
    Discard,
    /// The server says what cannot be; nothing is taken from it.
    Lie(String),
    /// No answer to a blob request; the status decides.
    Status,
}

/// Judges the answer to a request for a blob of `size` bytes from offset `have` on (0: without `Range`).
#[must_use]
pub fn judge(head: &Head<'_>, have: u64, size: u64) -> Verdict {
    if matches!(head.status, 200 | 206) && head.content_encoding.is_some_and(|e| !e.eq_ignore_ascii_case("identity")) {
        return Verdict::Lie(format!("it is encoded ({}), unasked", head.content_encoding.unwrap_or_default()));
    }
    match head.status {
        200 => match head.content_length {
            Some(length) if length != size => Verdict::Lie(format!("it has {length} bytes, the manifest says {size}")),
            _ if have > 0 => Verdict::Restart,
            _ => Verdict::Append,
        },
        206 => partial(head, have, size),
        416 if have > 0 => match head.content_range.and_then(ContentRange::parse) {
            Some(ContentRange::Unsatisfied { total }) if total != size => {
                Verdict::Lie(format!("it has {total} bytes, the manifest says {size}"))
            }
            _ if have == size => Verdict::Complete,
            _ => Verdict::Discard,
        },
        _ => Verdict::Status,
    }
}

fn partial(head: &Head<'_>, have: u64, size: u64) -> Verdict {
    let text = head.content_range.unwrap_or_default();
    let Some(ContentRange::Bytes { first, last, total }) = ContentRange::parse(text) else {
        return Verdict::Lie(format!("partial content with Content-Range {text:?}"));
    };
    if first != have {
        return Verdict::Lie(format!("partial content from {first}, asked for {have}"));
    }
    if total != size {
        return Verdict::Lie(format!("partial content of {total} bytes, the manifest says {size}"));
    }
    match head.content_length {
        Some(length) if length != last - first + 1 => {
            Verdict::Lie(format!("{length} bytes for Content-Range {text:?}"))
        }
        _ => Verdict::Append,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head(status: u16, range: Option<&'static str>, length: Option<u64>) -> Head<'static> {
        Head { status, content_range: range, content_length: length, content_encoding: None }
    }

    #[test]
    fn ranges_are_read_strictly() {
        let bytes = |first, last, total| Some(ContentRange::Bytes { first, last, total });
        assert_eq!(ContentRange::parse("bytes 0-9/10"), bytes(0, 9, 10));
        assert_eq!(ContentRange::parse("bytes */10"), Some(ContentRange::Unsatisfied { total: 10 }));
        for text in [
            "",
            "bytes",
            "bytes 0-9",
            "bytes 0-9/*",
            "bytes 9-0/10",
            "bytes 0-10/10",
            "bytes +0-9/10",
            "bytes 0-9/10 ",
            "bytes  0-9/10",
            "octets 0-9/10",
            "bytes 0-99999999999999999999/100000000000000000000",
            "bytes -9/10",
        ] {
            assert_eq!(ContentRange::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_the_asked_bytes_are_taken() {
        assert_eq!(judge(&head(200, None, Some(10)), 0, 10), Verdict::Append);
        assert_eq!(judge(&head(200, None, None), 0, 10), Verdict::Append);
        assert_eq!(judge(&head(200, None, Some(10)), 4, 10), Verdict::Restart);
        assert!(matches!(judge(&head(200, None, Some(11)), 0, 10), Verdict::Lie(_)));
        assert_eq!(judge(&head(206, Some("bytes 4-9/10"), Some(6)), 4, 10), Verdict::Append);
        assert_eq!(judge(&head(206, Some("bytes 4-7/10"), None), 4, 10), Verdict::Append);
        for (range, length) in [
            (None, None),
            (Some("bytes 0-9/10"), None),
            (Some("bytes 4-9/11"), None),
            (Some("bytes 4-9/*"), None),
            (Some("bytes 4-9/10"), Some(7)),
        ] {
            assert!(matches!(judge(&head(206, range, length), 4, 10), Verdict::Lie(_)), "{range:?} {length:?}");
        }
        let encoded = Head { content_encoding: Some("gzip"), ..head(200, None, None) };
        assert!(matches!(judge(&encoded, 0, 10), Verdict::Lie(_)));
    }

    #[test]
    fn a_refused_range_is_all_or_nothing() {
        assert_eq!(judge(&head(416, Some("bytes */10"), None), 10, 10), Verdict::Complete);
        assert_eq!(judge(&head(416, None, None), 10, 10), Verdict::Complete);
        assert_eq!(judge(&head(416, Some("bytes */10"), None), 4, 10), Verdict::Discard);
        assert!(matches!(judge(&head(416, Some("bytes */9"), None), 10, 10), Verdict::Lie(_)));
        assert_eq!(judge(&head(416, None, None), 0, 10), Verdict::Status);
        assert_eq!(judge(&head(503, None, None), 4, 10), Verdict::Status);
    }

    #[test]
    fn a_server_reads_ranges_too() {
        assert_eq!(first_range("bytes=0-", 10), Some(Ok((0, 9))));
        assert_eq!(first_range("bytes=3-4", 10), Some(Ok((3, 4))));
        assert_eq!(first_range("bytes=3-99", 10), Some(Ok((3, 9))));
        assert_eq!(first_range("bytes=-3", 10), Some(Ok((7, 9))));
        assert_eq!(first_range("bytes=-99", 10), Some(Ok((0, 9))));
        assert_eq!(first_range("bytes=10-", 10), Some(Err(())));
        assert_eq!(first_range("bytes=0-", 0), Some(Err(())));
        for text in ["", "bytes", "bytes=", "bytes=-", "bytes=4-3", "bytes=0-1,3-4", "lines=0-1", "bytes=x-"] {
            assert_eq!(first_range(text, 10), None, "{text:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn any_range_is_answered(text in "(bytes )?\\PC{0,24}", size: u64) {
            let _ = ContentRange::parse(&text);
            if let Some(Ok((first, last))) = first_range(&text, size) {
                prop_assert!(first <= last && last < size);
            }
        }

        #[test]
        fn what_is_appended_lies_within_the_blob(status: u16, text in "bytes [0-9]{1,2}-[0-9]{1,2}/[0-9]{1,2}", length in proptest::option::of(0u64..100), have in 0u64..100, size in 0u64..100) {
            let head = Head { status, content_range: Some(&text), content_length: length, content_encoding: None };
            if status == 206 && judge(&head, have, size) == Verdict::Append {
                let Some(ContentRange::Bytes { first, last, total }) = ContentRange::parse(&text) else { panic!("a range") };
                prop_assert!(first == have && total == size && last < size);
            }
        }
    }
}
