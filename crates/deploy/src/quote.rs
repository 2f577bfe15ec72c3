//! The one place where an argument vector becomes a command line: sshd hands it to the user's login shell.

/// Quotes an argument vector for a POSIX shell.
#[must_use]
pub fn command_line<S: AsRef<str>>(argv: &[S]) -> String {
    argv.iter().map(|word| quote(word.as_ref())).collect::<Vec<_>>().join(" ")
}

fn quote(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-+=:,@%".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) && !word.starts_with('=') {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn a_shell_gives_the_words_back(words in proptest::collection::vec("[^\0]{0,12}", 1..5)) {
            let line = format!("printf '%s\\0' {}", command_line(&words));
            let output = std::process::Command::new("/bin/sh").args(["-c", &line]).output().unwrap();
            let expected: Vec<u8> = words.iter().flat_map(|w| [w.as_bytes(), b"\0"].concat()).collect();
            prop_assert_eq!(output.stdout, expected);
        }
    }
}
