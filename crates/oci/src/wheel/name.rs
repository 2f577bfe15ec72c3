//! Names: of wheel files, of distributions (PEP 503) and of what a wheel was built for (PEP 425, PEP 600).

use std::fmt;

/// A distribution's name as indexes compare it (PEP 503): lower case, runs of `-`, `_` and `.` as one `-`.
#[must_use]
pub fn normalise(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            '-' | '_' | '.' if out.ends_with('-') => {}
            '-' | '_' | '.' => out.push('-'),
            c => out.extend(c.to_lowercase()),
        }
    }
    out
}

/// Whether two spellings are one version: case and the separators that file names escape do not count.
#[must_use]
pub fn same_version(a: &str, b: &str) -> bool {
    let plain = |v: &str| v.trim().to_ascii_lowercase().replace(['-', '_'], ".");
    plain(a) == plain(b)
}

/// Processor of the machines that a layer is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arch {
    /// 64-bit Arm.
    Aarch64,
    /// 64-bit x86.
    X86_64,
}

impl Arch {
    /// As platform tags have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Aarch64 => "aarch64",
            Self::X86_64 => "x86_64",
        }
    }

    /// By an image's platform, as `arm64`.
    #[must_use]
    pub fn of_image(architecture: &str) -> Option<Self> {
        match architecture {
            "arm64" => Some(Self::Aarch64),
            "amd64" => Some(Self::X86_64),
            _ => None,
        }
    }

    /// `e_machine` of its ELF files.
    #[must_use]
    pub fn elf(self) -> u16 {
        match self {
            Self::Aarch64 => 183,
            Self::X86_64 => 62,
        }
    }
}

/// Minor version of a CPython 3 by its tag, e.g. 12 of `cp312`.
#[must_use]
pub fn python_minor(tag: &str) -> Option<u32> {
    tag.strip_prefix("cp3")?.parse().ok()
}

/// The two numbers of a glibc's version; what follows them does not count.
#[must_use]
pub fn glibc_version(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.split_once('.')?;
    Some((major.parse().ok()?, rest.split('.').next()?.parse().ok()?))
}

/// Platform tags that are names of glibc 2 versions, by the minor one.
const OLDER: [(&str, u32); 3] = [("manylinux2014", 17), ("manylinux2010", 12), ("manylinux1", 5)];

/// What wheels must fit (R23).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Minor version of the CPython 3 in the image.
    pub minor: u32,
    /// Its processor.
    pub arch: Arch,
    /// Its glibc.
    pub glibc: (u32, u32),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cp3{} on {} with glibc {}.{}", self.minor, self.arch.name(), self.glibc.0, self.glibc.1)
    }
}

impl Target {
    /// Whether a wheel with this tag runs here.
    #[must_use]
    pub fn takes(&self, tag: &Tag) -> bool {
        self.interpreter(&tag.python, &tag.abi) && self.platform(&tag.platform)
    }

    /// The platform tags that run here, best first: as a resolver must be told them.
    #[must_use]
    pub fn platform_tags(&self) -> Vec<String> {
        let arch = self.arch.name();
        // manylinux begins with glibc 2.5, and on Arm with 2.17.
        let oldest = if self.arch == Arch::X86_64 { 5 } else { 17 };
        let numbered = (oldest..=self.glibc.1).rev().map(|minor| format!("manylinux_2_{minor}_{arch}"));
        let older = OLDER.iter().filter(|(_, minor)| (oldest..=self.glibc.1).contains(minor));
        numbered.chain(older.map(|(tag, _)| format!("{tag}_{arch}"))).chain([format!("linux_{arch}")]).collect()
    }

    fn interpreter(&self, python: &str, abi: &str) -> bool {
        let minor = |prefix: &str| python.strip_prefix(prefix).and_then(|m| m.parse::<u32>().ok());
        match abi {
            "none" => {
                python == "py3"
                    || minor("py3").is_some_and(|m| m <= self.minor)
                    || minor("cp3").is_some_and(|m| m == self.minor)
            }
            // The stable ABI exists since 3.2.
            "abi3" => minor("cp3").is_some_and(|m| (2..=self.minor).contains(&m)),
            _ => minor("cp3") == Some(self.minor) && abi == python,
        }
    }

    fn platform(&self, platform: &str) -> bool {
        if platform == "any" {
            return true;
        }
        let Some(base) = platform.strip_suffix(self.arch.name()).and_then(|p| p.strip_suffix('_')) else {
            return false;
        };
        if base == "linux" {
            return true;
        }
        let older = OLDER.iter().find(|(name, _)| *name == base).map(|(_, minor)| (2, *minor));
        let numbered = || {
            let (major, minor) = base.strip_prefix("manylinux_")?.split_once('_')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        let needs: Option<(u32, u32)> = older.or_else(numbered);
        needs.is_some_and(|v| v <= self.glibc)
    }
}

/// One compatibility tag.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tag {
    /// Interpreter, e.g. `cp312`.
    pub python: String,
    /// Binary interface, e.g. `abi3`.
    pub abi: String,
    /// Platform, e.g. `manylinux2014_aarch64`.
    pub platform: String,
}

impl Tag {
    /// Whether both name one interface and one kind of machine, whatever its glibc.
    #[must_use]
    pub fn agrees(&self, other: &Self) -> bool {
        let machine = |tag: &Self| {
            let arch = [Arch::Aarch64, Arch::X86_64].into_iter().find(|a| tag.platform.ends_with(a.name()));
            arch.filter(|_| tag.platform.contains("linux"))
        };
        let platform = self.platform == other.platform || machine(self).is_some_and(|m| machine(other) == Some(m));
        (&self.python, &self.abi) == (&other.python, &other.abi) && platform
    }

    /// The tags that a compressed set stands for, sorted.
    #[must_use]
    pub fn expand(text: &str) -> Option<Vec<Self>> {
        let parts: Vec<&str> = text.split('-').collect();
        let [python, abi, platform] = parts.as_slice() else { return None };
        let mut tags = Vec::new();
        for python in python.split('.') {
            for abi in abi.split('.') {
                for platform in platform.split('.') {
                    if [python, abi, platform].iter().any(|t| t.is_empty()) {
                        return None;
                    }
                    let [python, abi, platform] = [python, abi, platform].map(str::to_owned);
                    tags.push(Self { python, abi, platform });
                }
            }
        }
        tags.sort();
        tags.dedup();
        Some(tags)
    }
}

/// A wheel's file name, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileName {
    /// The distribution, normalised.
    pub name: String,
    /// Its version as spelt there.
    pub version: String,
    /// What it was built for.
    pub tags: Vec<Tag>,
}

/// Most characters of a file name.
const LONGEST: usize = 255;

impl FileName {
    /// Takes a file name apart: `name-version[-build]-python-abi-platform.whl`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(file: &str) -> Result<Self, &'static str> {
        let stem = file.strip_suffix(".whl").ok_or("its name does not end in .whl")?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-+!".contains(c);
        if file.len() > LONGEST || !file.chars().all(allowed) {
            return Err("its name has characters that no wheel's name has, or too many");
        }
        let parts: Vec<&str> = stem.split('-').collect();
        let (name, version) = match parts.as_slice() {
            [name, version, _, _, _] => (name, version),
            [name, version, build, _, _, _] if build.starts_with(|c: char| c.is_ascii_digit()) => (name, version),
            _ => return Err("its name is not name-version[-build]-python-abi-platform.whl"),
        };
        if name.is_empty() || !version.starts_with(|c: char| c.is_ascii_digit()) {
            return Err("its name lacks a name or a version");
        }
        let tags = Tag::expand(&parts[parts.len() - 3..].join("-")).ok_or("its name has an empty tag")?;
        Ok(Self { name: normalise(name), version: (*version).to_owned(), tags })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_named_platform_is_taken() {
        for (arch, glibc, count) in [(Arch::Aarch64, 39, 23 + 1 + 1), (Arch::X86_64, 36, 32 + 3 + 1)] {
            let target = Target { minor: 12, arch, glibc: (2, glibc) };
            let tags = target.platform_tags();
            assert_eq!(tags.len(), count, "{tags:?}");
            assert!(tags.iter().all(|t| target.platform(t)), "{tags:?}");
            assert_eq!(tags[0], format!("manylinux_2_{glibc}_{}", arch.name()));
        }
    }

    const SPARK: Target = Target { minor: 12, arch: Arch::Aarch64, glibc: (2, 39) };

    fn fits(tag: &str) -> bool {
        Tag::expand(tag).unwrap().iter().any(|t| SPARK.takes(t))
    }

    #[test]
    fn names_are_normalised() {
        assert_eq!(normalise("Foo._-Bar.baz"), "foo-bar-baz");
        assert_eq!(normalise("opencensus_context"), "opencensus-context");
        assert!(same_version("1.0-RC_1+ab", "1.0.rc.1+ab"));
        assert!(!same_version("1.0", "1.1"));
    }

    #[test]
    fn what_runs_on_a_spark() {
        for tag in [
            "py3-none-any",
            "py2.py3-none-any",
            "cp312-cp312-manylinux2014_aarch64.manylinux_2_17_aarch64",
            "cp310-abi3-manylinux2014_aarch64",
            "cp312-none-manylinux_2_39_aarch64",
            "py2.py3-none-manylinux2014_aarch64",
            "py38-none-linux_aarch64",
        ] {
            assert!(fits(tag), "{tag}");
        }
        for tag in [
            "py2-none-any",
            "cp311-cp311-manylinux2014_aarch64",
            "cp313-abi3-manylinux2014_aarch64",
            "cp312-cp312t-manylinux2014_aarch64",
            "cp312-cp312-manylinux_2_40_aarch64",
            "cp312-cp312-musllinux_1_2_aarch64",
            "cp312-cp312-manylinux2014_x86_64",
            "cp312-cp312-win_amd64",
            "cp311-none-any",
            "pp310-pypy310_pp73-manylinux2014_aarch64",
            "py313-none-any",
        ] {
            assert!(!fits(tag), "{tag}");
        }
    }

    #[test]
    fn tags_agree_whatever_the_glibc() {
        let agree = |a: &str, b: &str| Tag::expand(a).unwrap()[0].agrees(&Tag::expand(b).unwrap()[0]);
        assert!(agree("cp312-cp312-linux_aarch64", "cp312-cp312-manylinux2014_aarch64"));
        assert!(agree("py3-none-any", "py3-none-any"));
        assert!(!agree("cp312-cp312-linux_aarch64", "cp312-cp312-manylinux2014_x86_64"));
        assert!(!agree("cp312-abi3-linux_aarch64", "cp312-cp312-linux_aarch64"));
        assert!(!agree("py3-none-any", "py3-none-linux_aarch64"));
    }

    #[test]
    fn file_names() {
        let parsed = FileName::parse("Foo_Bar-1.2-1b-py3-none-any.whl").unwrap();
        assert_eq!((parsed.name.as_str(), parsed.version.as_str(), parsed.tags.len()), ("foo-bar", "1.2", 1));
        for bad in
            ["a.zip", "a-1-py3-any.whl", "a-1-x-py3-none-any.whl", "../a-1-py3-none-any.whl", "-1-py3-none-any.whl"]
        {
            assert!(FileName::parse(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn any_text_is_taken_apart_or_refused(text in "[ -~]{0,40}(-[a-z0-9._]{0,6}){0,7}(\\.whl)?", any in ".{0,60}") {
            for text in [text, any] {
                let _ = FileName::parse(&text).map(|n| n.tags.iter().filter(|t| SPARK.takes(t)).count());
                prop_assert_eq!(normalise(&normalise(&text)), normalise(&text));
            }
        }
    }
}
