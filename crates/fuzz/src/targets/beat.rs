//! Heartbeats and what a supervisor leaves on disk: strangers' datagrams are refused, what is sealed comes back.

use sparklane_engine::pair::Beat;
use sparklane_engine::pair::beat::{MAX_DATAGRAM, open, seal};
use sparklane_engine::pair::keys::Key;
use sparklane_engine::state::EngineState;

/// One input.
pub fn run(data: &[u8]) {
    let keys = [Key::new(&[1; 32]), Key::new(&[2; 32])];
    assert!(open(&keys, data).is_err(), "nobody without the key can seal");
    if let Ok(beat) = serde_json::from_slice::<Beat>(data)
        && let Ok(sealed) = seal(&keys, &beat)
    {
        assert!(sealed.len() <= MAX_DATAGRAM);
        assert_eq!(open(&keys[1..], &sealed).as_ref(), Ok(&beat));
        let mut forged = sealed.clone();
        let at = data.len() * 31 % forged.len();
        forged[at] ^= 1;
        assert!(open(&keys[1..], &forged).is_err() || (5..45).contains(&at), "a changed byte at {at}");
    }
    if let Ok(state) = serde_json::from_slice::<EngineState>(data) {
        let again = serde_json::to_vec(&state).expect("it can be written");
        assert_eq!(serde_json::from_slice::<EngineState>(&again).expect("and read"), state);
    }
}
