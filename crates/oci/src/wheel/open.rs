//! A wheel that was read and whose parts agree (R23 to R25, R32).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::sync::Arc;

use super::entry_points::{self, Script};
use super::metadata::{About, Metadata};
use super::name::{self, FileName};
use super::record::{self, Row};
use super::zip::{Archive, Member};
use super::{Target, WheelError, path};

/// Most bytes of a file of .dist-info that is read here.
const SMALL: u64 = 16 << 20;

/// A wheel whose file name, METADATA, WHEEL, RECORD and archive agree. Hashes of its files are checked when a layer is
/// written of it.
#[derive(Debug, Clone)]
pub struct Wheel {
    file: String,
    name: FileName,
    about: About,
    archive: Archive,
    dist_info: String,
    rows: BTreeMap<String, Row>,
    scripts: Vec<Script>,
}

impl Wheel {
    /// Reads and checks a wheel; `file` is its file name.
    ///
    /// # Errors
    /// Which part breaks a rule.
    pub fn open(source: Arc<File>, file: &str) -> Result<Self, WheelError> {
        let refused = |part: &str, why: String| WheelError::refused(file, part, why);
        let name = FileName::parse(file).map_err(|why| refused("file name", why.to_owned()))?;
        let archive = Archive::open(source, file)?;
        let dist_info = dist_info(&archive, &name).map_err(|why| refused(".dist-info", why))?;
        let reader = Reader { file, archive: &archive, dist_info: &dist_info };
        let metadata = Metadata::parse(&reader.text("METADATA")?).map_err(|why| refused("METADATA", why))?;
        if name::normalise(&metadata.name) != name.name || !name::same_version(&metadata.version, &name.version) {
            let why = format!("it is of {} {}, which the file name is not", metadata.name, metadata.version);
            return Err(refused("METADATA", why));
        }
        let about = About::parse(&reader.text("WHEEL")?).map_err(|why| refused("WHEEL", why))?;
        // Files are renamed after they were made: py-spy's WHEEL has two of its four tags, Ray's says linux_aarch64.
        if !about.tags.iter().any(|tag| name.tags.iter().any(|named| tag.agrees(named))) {
            return Err(refused("WHEEL", "none of its tags agrees with the file name's".to_owned()));
        }
        let rows = record::parse(&reader.text("RECORD")?).map_err(|why| refused("RECORD", why))?;
        let rows = listed(rows, &archive, &dist_info).map_err(|why| refused("RECORD", why))?;
        let entry_points = archive.file(&format!("{dist_info}/entry_points.txt")).is_some();
        let text = if entry_points { reader.text("entry_points.txt")? } else { String::new() };
        let scripts = entry_points::scripts(&text).map_err(|why| refused("entry_points.txt", why))?;
        Ok(Self { file: file.to_owned(), name, about, archive, dist_info, rows, scripts })
    }

    /// Its file name.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Its distribution, normalised.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name.name
    }

    /// Its version, as its file name spells it.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.name.version
    }

    /// What WHEEL says.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }

    /// The folder with its metadata, at the archive's top.
    #[must_use]
    pub fn dist_info(&self) -> &str {
        &self.dist_info
    }

    /// The folder whose content goes elsewhere, whether or not there is one.
    #[must_use]
    pub fn data(&self) -> String {
        self.dist_info.strip_suffix(".dist-info").map(|stem| format!("{stem}.data")).unwrap_or_default()
    }

    /// Scripts that it wants made, by name.
    #[must_use]
    pub fn scripts(&self) -> &[Script] {
        &self.scripts
    }

    /// The archive.
    #[must_use]
    pub fn archive(&self) -> &Archive {
        &self.archive
    }

    /// Its files with their rows of RECORD, in the archive's order: all but RECORD itself and its signatures.
    pub fn files(&self) -> impl Iterator<Item = (&Member, &Row)> {
        self.archive.members().iter().filter(|m| !m.directory).filter_map(|m| {
            let row = self.rows.get(&m.name)?;
            row.sha256.is_some().then_some((m, row))
        })
    }

    /// Refuses a wheel that does not run on the target (R23).
    ///
    /// # Errors
    /// What it was built for.
    pub fn fits(&self, target: &Target) -> Result<(), WheelError> {
        if self.name.tags.iter().any(|tag| target.takes(tag)) {
            return Ok(());
        }
        Err(WheelError::refused(&self.file, "tags", format!("none fits {target}")))
    }
}

struct Reader<'a> {
    file: &'a str,
    archive: &'a Archive,
    dist_info: &'a str,
}

impl Reader<'_> {
    fn text(&self, name: &str) -> Result<String, WheelError> {
        let path = format!("{}/{name}", self.dist_info);
        let refused = |why: &str| WheelError::refused(self.file, name, why);
        let member = self.archive.file(&path).ok_or_else(|| refused("it is missing"))?;
        let bytes = self.archive.read(member, SMALL)?;
        String::from_utf8(bytes).map_err(|_| refused("it is not UTF-8"))
    }
}

/// The one top-level folder of metadata, whose name is the file name's (R24: wheels carry others' deeper down).
fn dist_info(archive: &Archive, name: &FileName) -> Result<String, String> {
    let tops = archive.members().iter().filter_map(|m| match m.name.split_once('/') {
        Some((top, _)) => Some(top),
        None => m.directory.then_some(m.name.as_str()),
    });
    let found: HashSet<&str> = tops.filter(|t| t.ends_with(".dist-info")).collect();
    let mut found: Vec<&str> = found.into_iter().collect();
    found.sort_unstable();
    let [only] = found.as_slice() else {
        return Err(format!("there must be one at the top, there are {}: {}", found.len(), found.join(", ")));
    };
    let stem = only.strip_suffix(".dist-info").and_then(|s| s.rsplit_once('-'));
    match stem {
        Some((n, v)) if name::normalise(n) == name.name && name::same_version(v, &name.version) => {
            Ok((*only).to_owned())
        }
        _ => Err(format!("{only} is not that of {} {}", name.name, name.version)),
    }
}

/// RECORD's rows by path, after every file is in it and everything in it is a file (R25).
fn listed(rows: Vec<Row>, archive: &Archive, dist_info: &str) -> Result<BTreeMap<String, Row>, String> {
    let own = ["RECORD", "RECORD.jws", "RECORD.p7s"].map(|n| format!("{dist_info}/{n}"));
    let members: HashMap<&str, &Member> =
        archive.members().iter().filter(|m| !m.directory).map(|m| (m.name.as_str(), m)).collect();
    let mut by_path = BTreeMap::new();
    for row in rows {
        path::check(&row.path)?;
        let size = members.get(row.path.as_str()).ok_or_else(|| format!("{} is listed, but not there", row.path))?.size;
        if row.size.is_some_and(|s| s != size) {
            return Err(format!("{} has {size} bytes, not those listed", row.path));
        }
        if row.sha256.is_none() && !own.contains(&row.path) {
            return Err(format!("{} has no hash", row.path));
        }
        if row.sha256.is_some() && own.contains(&row.path) {
            return Err(format!("{} has a hash, which cannot be", row.path));
        }
        if let Some(twice) = by_path.insert(row.path.clone(), row) {
            return Err(format!("{} is listed twice", twice.path));
        }
    }
    let missing = members.keys().filter(|n| !by_path.contains_key(**n) && !own.iter().any(|o| o == **n)).min();
    missing.map_or(Ok(by_path), |name| Err(format!("{name} is there, but not listed")))
}
