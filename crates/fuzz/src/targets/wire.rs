//! What the ends of a transfer of weights say: what is understood is said again in the same bytes.

use sparklane_weights::buffer::EXTENT;
use sparklane_weights::transfer::Key;
use sparklane_weights::transfer::rail::Rail;
use sparklane_weights::transfer::wire::{Answer, Hello, MAX_HASHES, Request, Welcome};

/// One input.
pub fn run(data: &[u8]) {
    if let Some(hello) = Hello::decode(data) {
        assert_eq!(hello.encode(), data);
    }
    if let Some(welcome) = Welcome::decode(data) {
        assert_eq!(welcome.encode(), data);
    }
    if let Some(request) = Request::decode(data) {
        assert_eq!(request.encode(), data);
        match request {
            Request::Get(want) => assert!(want.len as usize <= EXTENT && want.offset.checked_add(want.len.into()).is_some()),
            Request::Hashes { count, .. } => assert!((1..=MAX_HASHES).contains(&count)),
            Request::Probe { len } => assert!(len as usize <= EXTENT),
            Request::Bye => {}
        }
    }
    match Answer::decode(data) {
        Some(Answer::Refused(text)) => {
            assert!(!text.chars().any(char::is_control));
            let said = Answer::Refused(text);
            assert!(Answer::decode(&said.encode()).is_some(), "{said:?}");
        }
        Some(answer) => assert_eq!(answer.encode(), data),
        None => {}
    }
    if let Ok(text) = std::str::from_utf8(data) {
        if let Ok(rail) = text.parse::<Rail>() {
            assert_eq!(rail.source.is_ipv4(), rail.peer.is_ipv4());
        }
        if let Ok(key) = text.parse::<Key>() {
            assert_eq!(key.expose(), text.trim());
        }
    }
}
