//! The small HTTP client: what is an answer stays one however its bytes arrive.

use sparklane_engine::http::{MAX_BYTES, Url, parse};

/// One input.
pub fn run(data: &[u8]) {
    let whole = parse(data, true);
    match parse(data, false) {
        Ok(Some(answer)) => {
            assert!(answer.body.len() <= MAX_BYTES);
            assert_eq!(whole, Ok(Some(answer.clone())));
            // More bytes change nothing.
            assert_eq!(parse(&[data, b"x"].concat(), false), Ok(Some(answer)));
        }
        Ok(None) => assert!(!matches!(whole, Ok(None)), "at its end an answer is one or none"),
        Err(error) => assert_eq!(whole, Err(error)),
    }
    for at in [data.len() / 2, data.len().saturating_sub(1)] {
        if let Ok(Some(early)) = parse(&data[..at], false) {
            assert_eq!(parse(data, false), Ok(Some(early)));
        }
    }
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(url) = Url::parse(text)
    {
        assert!(url.path.starts_with('/') && url.path.bytes().all(|b| b.is_ascii_graphic()));
        assert!(!url.address.ip().is_unspecified());
    }
}
