//! The key that signs closures, in Nix's form: `name:base64(seed and public half)`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

/// Bytes of an ed25519 seed, and of a public key.
const HALF: usize = 32;

/// The public half, `name:base64`, of a secret key; `None` when it is no such key.
#[must_use]
pub fn public(secret: &str) -> Option<String> {
    let (name, body) = secret.trim().split_once(':')?;
    let bytes = STANDARD.decode(body).ok()?;
    let public = bytes.get(HALF..).filter(|half| half.len() == HALF)?;
    (!name.is_empty()).then(|| format!("{name}:{}", STANDARD.encode(public)))
}

/// A secret key made of a random seed; `None` when the name cannot be one.
#[must_use]
pub fn make(name: &str, seed: &[u8; HALF]) -> Option<String> {
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    let pair = Ed25519KeyPair::from_seed_unchecked(seed).ok().filter(|_| plain)?;
    Some(format!("{name}:{}\n", STANDARD.encode([&seed[..], pair.public_key().as_ref()].concat())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_made_here_is_one_for_nix() {
        // RFC 8032, 7.1, test 1.
        let seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60";
        let seed: Vec<u8> = (0..32).map(|n| u8::from_str_radix(&seed[2 * n..2 * n + 2], 16).unwrap()).collect();
        let secret = make("sparks-1", seed.as_slice().try_into().unwrap()).unwrap();
        let public = public(&secret).unwrap();
        assert_eq!(public, "sparks-1:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=");
        assert_eq!(make("a b", &[0; 32]), None);
    }

    #[test]
    fn what_is_no_key_has_no_public_half() {
        for text in ["", "x", ":AAAA", "x:AAAA", "x:!"] {
            assert_eq!(public(text), None, "{text}");
        }
    }
}
