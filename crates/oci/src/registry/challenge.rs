//! `WWW-Authenticate`: what a registry wants to see before it answers (RFC 9110 section 11, distribution's token scheme).

/// One challenge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    /// Scheme in lower case, e.g. `bearer`.
    pub scheme: String,
    /// Parameters, names in lower case, in order.
    pub params: Vec<(String, String)>,
}

impl Challenge {
    /// A parameter's value.
    #[must_use]
    pub fn param(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// Parses a header's value, which may hold several challenges. What cannot be read is left out.
#[must_use]
pub fn parse(text: &str) -> Vec<Challenge> {
    let mut rest = Cursor { text };
    let mut found: Vec<Challenge> = Vec::new();
    loop {
        rest.skip(|b| b == b' ' || b == b'\t' || b == b',');
        let word = rest.token();
        if word.is_empty() {
            return found;
        }
        rest.skip(|b| b == b' ' || b == b'\t');
        if rest.eat(b'=') && !rest.text.starts_with('=') {
            rest.skip(|b| b == b' ' || b == b'\t');
            let Some(value) = rest.value() else { return found };
            let Some(challenge) = found.last_mut() else { return found };
            challenge.params.push((word.to_ascii_lowercase(), value));
        } else {
            found.push(Challenge { scheme: word.to_ascii_lowercase(), params: Vec::new() });
        }
    }
}

struct Cursor<'a> {
    text: &'a str,
}

impl<'a> Cursor<'a> {
    fn skip(&mut self, what: impl Fn(u8) -> bool) {
        let n = self.text.bytes().take_while(|b| what(*b)).count();
        self.text = self.text.get(n..).unwrap_or_default();
    }

    fn eat(&mut self, byte: u8) -> bool {
        let there = self.text.as_bytes().first() == Some(&byte);
        if there {
            self.text = self.text.get(1..).unwrap_or_default();
        }
        there
    }

    fn token(&mut self) -> &'a str {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~/".contains(&b);
        let n = self.text.bytes().take_while(|b| plain(*b)).count();
        let (token, rest) = self.text.split_at_checked(n).unwrap_or_default();
        self.text = rest;
        token
    }

    /// A token or a quoted string; `None` where the quote never ends.
    fn value(&mut self) -> Option<String> {
        if !self.eat(b'"') {
            return Some(self.token().to_owned());
        }
        let mut value = String::new();
        let mut chars = self.text.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.text = self.text.get(at + 1..).unwrap_or_default();
                    return Some(value);
                }
                '\\' => value.push(chars.next()?.1),
                c => value.push(c),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_usual_challenge_is_read() {
        let found = parse(r#"Bearer realm="https://ghcr.io/token",service="ghcr.io",scope="repository:a/b:pull""#);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].scheme, "bearer");
        assert_eq!(found[0].param("realm"), Some("https://ghcr.io/token"));
        assert_eq!(found[0].param("scope"), Some("repository:a/b:pull"));
    }

    #[test]
    fn odd_ones_are_read_too() {
        let found = parse(r#"BASIC realm="a \"b\", c", charset=UTF-8, bearer REALM = x , service=y"#);
        let schemes: Vec<&str> = found.iter().map(|c| c.scheme.as_str()).collect();
        assert_eq!(schemes, ["basic", "bearer"]);
        assert_eq!(found[0].param("realm"), Some(r#"a "b", c"#));
        assert_eq!(found[1].param("realm"), Some("x"));
        assert_eq!(found[1].param("service"), Some("y"));
        assert_eq!(parse("").len(), 0);
        assert_eq!(parse("realm=x").len(), 0);
        assert_eq!(parse(r#"Bearer realm="never ends"#)[0].param("realm"), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn any_header_is_answered(text in "([a-zA-Z]{1,6}[ =\",\\\\]{0,3}|\\PC){0,12}") {
            let _ = parse(&text);
        }
    }
}
