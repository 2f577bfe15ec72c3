//! Locks: which wheel files an image is made of. No address stands in them.

use std::fs::File;
use std::io::{BufReader, Seek as _};
use std::sync::Arc;

use camino::Utf8Path;
use serde::{Deserialize, Serialize};

use super::name::{self, Arch, FileName};
use super::open::Wheel;
use super::{Target, WheelError};
use crate::digest;

/// The one format there is.
pub const FORMAT: u32 = 1;

/// A set of wheel files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lock {
    /// Format of this file.
    pub format: u32,
    /// Interpreter's tag, e.g. `cp312`.
    pub python: String,
    /// Processor.
    pub platform: Arch,
    /// The newest glibc that a wheel may need, e.g. `2.28`.
    pub glibc: String,
    /// What was asked for.
    pub requirements: Vec<String>,
    /// The files, by distribution.
    pub wheels: Vec<Locked>,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Locked {
    /// The distribution, normalised.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The file's name.
    pub file: String,
    /// Its bytes.
    pub size: u64,
    /// Its SHA-256, in hexadecimal digits.
    pub sha256: String,
}

impl Lock {
    /// Reads a lock.
    ///
    /// # Errors
    /// An unreadable file or one that is no lock.
    pub fn read(path: &Utf8Path) -> Result<Self, WheelError> {
        let text = std::fs::read(path).map_err(|source| WheelError::Read { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|why| WheelError::Lock { path: path.to_owned(), why })
    }

    /// The lock of every wheel in `folder`, sorted; `requirements` is what they were resolved from.
    ///
    /// # Errors
    /// A folder that cannot be read, a file that is no wheel, or wheels that do not fit `target`.
    pub fn of_folder(folder: &Utf8Path, target: Target, requirements: Vec<String>) -> Result<Self, WheelError> {
        let unreadable = |source| WheelError::Read { path: folder.to_owned(), source };
        let mut wheels = Vec::new();
        for entry in folder.read_dir_utf8().map_err(unreadable)? {
            wheels.push(Locked::of_file(entry.map_err(unreadable)?.path())?);
        }
        wheels.sort_by(|a, b| a.name.cmp(&b.name));
        let glibc = format!("{}.{}", target.glibc.0, target.glibc.1);
        let python = format!("cp3{}", target.minor);
        let lock = Self { format: FORMAT, python, platform: target.arch, glibc, requirements, wheels };
        lock.check().map_err(|why| WheelError::Lock { path: folder.to_owned(), why })?;
        Ok(lock)
    }

    /// The lock as text: one wheel on a line, so that a change of one version is a change of one line.
    ///
    /// # Errors
    /// None that a lock can cause.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        let mut out = String::from("{\n");
        let head = [
            ("format", serde_json::to_string(&self.format)?),
            ("python", serde_json::to_string(&self.python)?),
            ("platform", serde_json::to_string(&self.platform)?),
            ("glibc", serde_json::to_string(&self.glibc)?),
            ("requirements", serde_json::to_string(&self.requirements)?),
        ];
        head.iter().for_each(|(key, value)| out += &format!("  \"{key}\": {value},\n"));
        let rows: Result<Vec<String>, _> = self.wheels.iter().map(serde_json::to_string).collect();
        let rows: Vec<String> = rows?.into_iter().map(|row| format!("    {row}")).collect();
        out += &format!("  \"wheels\": [\n{}\n  ]\n}}\n", rows.join(",\n"));
        Ok(out)
    }

    /// Reads a lock's bytes.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let lock: Self = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        lock.check()?;
        Ok(lock)
    }

    /// Checks a lock that was read as a part of another document.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("format {} is unknown, only {FORMAT} is known", self.format));
        }
        let target = self.target()?;
        for row in &self.wheels {
            row.check(&target).map_err(|why| format!("{}: {why}", row.file))?;
        }
        if let Some(two) = self.wheels.windows(2).find(|two| two[0].name >= two[1].name) {
            return Err(format!("{} and {} are not in order, or are one distribution", two[0].name, two[1].name));
        }
        Ok(())
    }

    /// What its wheels are for.
    ///
    /// # Errors
    /// A python or glibc that is none.
    pub fn target(&self) -> Result<Target, String> {
        let minor = name::python_minor(&self.python);
        let minor = minor.ok_or_else(|| format!("python {:?} is no tag like cp312", self.python))?;
        let glibc = name::glibc_version(&self.glibc);
        let glibc = glibc.ok_or_else(|| format!("glibc {:?} is no version like 2.28", self.glibc))?;
        Ok(Target { minor, arch: self.platform, glibc })
    }

    /// Opens every wheel in `folder`; each is hashed and checked first (R23).
    ///
    /// # Errors
    /// The first file that is missing, not the locked one, or no wheel.
    pub fn open(&self, folder: &Utf8Path) -> Result<Vec<Wheel>, WheelError> {
        self.wheels.iter().map(|row| row.open(folder)).collect()
    }
}

impl Locked {
    /// The row of a wheel file, as it is.
    fn of_file(path: &Utf8Path) -> Result<Self, WheelError> {
        let file = path.file_name().unwrap_or_default().to_owned();
        let parsed = FileName::parse(&file).map_err(|why| WheelError::refused(&file, "its name", why))?;
        let unreadable = |source| WheelError::Read { path: path.to_owned(), source };
        let bytes = File::open(path).map_err(unreadable)?;
        let (digest, size) = digest::of_reader(BufReader::new(bytes)).map_err(unreadable)?;
        Ok(Self { name: parsed.name, version: parsed.version, file, size, sha256: digest.hex().to_owned() })
    }

    fn check(&self, target: &Target) -> Result<(), String> {
        let parsed = FileName::parse(&self.file)?;
        if parsed.name != self.name || !name::same_version(&parsed.version, &self.version) {
            return Err(format!("it is not a file of {} {}", self.name, self.version));
        }
        if !parsed.tags.iter().any(|t| target.takes(t)) {
            return Err(format!("it does not fit {target}"));
        }
        let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if self.sha256.len() != 64 || !self.sha256.bytes().all(digit) {
            return Err("its sha256 is not 64 hexadecimal digits in lower case".to_owned());
        }
        Ok(())
    }

    /// Whether a file in `folder` is the locked one; gives it, open.
    ///
    /// # Errors
    /// A file that is missing or another one.
    pub fn find(&self, folder: &Utf8Path) -> Result<File, WheelError> {
        let path = folder.join(&self.file);
        let unreadable = |source| WheelError::Read { path: path.clone(), source };
        let different = |why| Err(WheelError::NotLocked { path: path.clone(), why });
        let mut file = File::open(&path).map_err(unreadable)?;
        let size = file.metadata().map_err(unreadable)?.len();
        if size != self.size {
            return different(format!("it has {size} bytes, the lock says {}", self.size));
        }
        let (digest, _) = digest::of_reader(BufReader::new(&file)).map_err(unreadable)?;
        if digest.hex() != self.sha256 {
            return different(format!("its sha256 is {}, the lock says {}", digest.hex(), self.sha256));
        }
        file.rewind().map_err(unreadable)?;
        Ok(file)
    }

    /// Opens the locked wheel in `folder`.
    ///
    /// # Errors
    /// Those of [`Locked::find`] and [`Wheel::open`].
    pub fn open(&self, folder: &Utf8Path) -> Result<Wheel, WheelError> {
        Wheel::open(Arc::new(self.find(folder)?), &self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAY: &str = include_str!("../../../../images/ray-2.57.0-cp312-aarch64.lock.json");

    #[test]
    fn the_lock_of_ray_is_one() {
        let lock = Lock::parse(RAY.as_bytes()).unwrap();
        assert_eq!((lock.wheels.len(), lock.wheels.iter().map(|w| w.size).sum::<u64>()), (57, 109_780_095));
        assert!(!RAY.contains("://"), "no addresses");
    }

    #[test]
    fn a_lock_of_a_folder_is_read_back_and_finds_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        for name in ["b-2-py3-none-any.whl", "a.B-1-cp39-abi3-manylinux_2_28_aarch64.whl"] {
            std::fs::write(folder.join(name), name).unwrap();
        }
        let target = Target { minor: 12, arch: Arch::Aarch64, glibc: (2, 28) };
        let lock = Lock::of_folder(folder, target, vec!["b>=2".to_owned()]).unwrap();
        assert_eq!(lock.wheels.iter().map(|w| w.name.as_str()).collect::<Vec<_>>(), ["a-b", "b"]);
        assert_eq!(Lock::parse(lock.text().unwrap().as_bytes()), Ok(lock.clone()));
        assert_eq!(lock.text().unwrap().lines().count(), 11);
        assert!(lock.wheels.iter().all(|row| row.find(folder).is_ok()));
        let other = Target { glibc: (2, 17), ..target };
        assert!(Lock::of_folder(folder, other, vec![]).unwrap_err().to_string().contains("does not fit"));
        std::fs::write(folder.join("c-1.tar.gz"), "").unwrap();
        assert!(Lock::of_folder(folder, target, vec![]).unwrap_err().to_string().contains("c-1.tar.gz"));
    }

    #[test]
    fn the_lock_of_ray_is_written_as_it_was() {
        let lock = Lock::parse(RAY.as_bytes()).unwrap();
        let plain = |text: &str| text.split_whitespace().collect::<String>();
        assert_eq!(plain(&lock.text().unwrap()), plain(RAY));
    }

    #[test]
    fn locks_that_are_none() {
        for (from, to, words) in [
            ("\"format\": 1", "\"format\": 2", "format 2 is unknown"),
            ("cp312\",\n", "pypy\",\n", "no tag like cp312"),
            ("2.28", "two", "no version like"),
            ("\"glibc\": \"2.28\"", "\"glibc\": \"2.16\"", "does not fit"),
            ("\"platform\": \"aarch64\"", "\"platform\": \"x86_64\"", "does not fit"),
            ("\"name\": \"six\"", "\"name\": \"seven\"", "not a file of seven"),
            ("\"file\": \"six-", "\"file\": \"../six-", "characters"),
            ("92432136", "9243213G", "64 hexadecimal"),
            ("\"name\": \"aiohttp\"", "\"url\": \"aiohttp\"", "unknown field"),
        ] {
            assert!(RAY.contains(from), "{from}");
            let error = Lock::parse(RAY.replacen(from, to, 1).as_bytes()).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn another_file_is_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(folder.path()).unwrap();
        let row = Locked {
            name: "a".to_owned(),
            version: "1".to_owned(),
            file: "a-1-py3-none-any.whl".to_owned(),
            size: 3,
            sha256: digest::of(b"abc").hex().to_owned(),
        };
        assert!(row.find(folder).unwrap_err().to_string().contains("cannot read"));
        std::fs::write(folder.join(&row.file), "abcd").unwrap();
        assert!(row.find(folder).unwrap_err().to_string().contains("4 bytes, the lock says 3"));
        std::fs::write(folder.join(&row.file), "abd").unwrap();
        assert!(row.find(folder).unwrap_err().to_string().contains("its sha256 is"));
        std::fs::write(folder.join(&row.file), "abc").unwrap();
        assert!(row.find(folder).is_ok());
    }
}
