//! From wheels to the entries of a layer, as pip would install them with the target's own interpreter (R11, R24 to R33).

use std::collections::{BTreeMap, BTreeSet};

use sha2::{Digest as _, Sha256};

use super::entry_points::check_name;
use super::open::Wheel;
use super::record::{self, Row};
use super::script::{self, Interpreter};
use super::zip::Member;
use super::{Target, WheelError};
use crate::layer::{Body, Entry, Meta, Node, TreePath};

/// Where wheels go in the image.
#[derive(Debug, Clone)]
pub struct Site {
    /// What they must fit.
    pub target: Target,
    /// Folder of modules, e.g. `usr/local/lib/python3.12/dist-packages`; it must be on the interpreter's `sys.path` (R29).
    pub site_packages: TreePath,
    /// Folder of scripts, e.g. `usr/local/bin`.
    pub bin: TreePath,
    /// Folder below which .data/data goes, e.g. `usr/local`.
    pub data: TreePath,
    /// Folder of C headers, e.g. `usr/local/include/python3.12`; a wheel that brings some is refused without.
    pub headers: Option<TreePath>,
    /// What scripts run with.
    pub python: Interpreter,
    /// Time of every entry (R2).
    pub mtime: u64,
    /// Whether compiled modules that wheels ship are taken (R30).
    pub pyc: bool,
}

/// A distribution as it will be in the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    /// Normalised.
    pub name: String,
    /// As its wheel's file name spells it.
    pub version: String,
    /// Its wheel.
    pub wheel: String,
    /// Its folder of metadata in the image.
    pub dist_info: TreePath,
    /// Everything it brings, RECORD included: paths in the image, sorted.
    pub files: Vec<TreePath>,
}

/// What wheels come to.
#[derive(Debug, Clone)]
pub struct Installed {
    /// Files, without directories: which of those are new depends on the base (see [`crate::layer::directories`]).
    pub entries: Vec<Entry>,
    /// The distributions, by name.
    pub distributions: Vec<Distribution>,
    /// What is allowed, but worth a look.
    pub warnings: Vec<String>,
}

/// The entries of wheels; see [`install`].
///
/// # Errors
/// Those of [`install`].
pub fn entries(wheels: &[Wheel], site: &Site) -> Result<Vec<Entry>, WheelError> {
    install(wheels, site).map(|i| i.entries)
}

/// What wheels come to at a place in the image.
///
/// # Errors
/// A wheel that does not fit the target, that brings what cannot be installed, or whose distribution another one brings.
pub fn install(wheels: &[Wheel], site: &Site) -> Result<Installed, WheelError> {
    let mut by_name: BTreeMap<&str, &Wheel> = BTreeMap::new();
    for wheel in wheels {
        wheel.fits(&site.target)?;
        if let Some(other) = by_name.insert(wheel.name(), wheel) {
            let (first, second) = (other.file().to_owned(), wheel.file().to_owned());
            return Err(WheelError::Together { first, second, why: format!("both are {}", wheel.name()) });
        }
    }
    let mut installed = Installed { entries: Vec::new(), distributions: Vec::new(), warnings: Vec::new() };
    for wheel in by_name.into_values() {
        let mut one = One { wheel, site, entries: Vec::new(), rows: Vec::new() };
        one.install()?;
        let mut files: Vec<TreePath> = one.entries.iter().map(|e| e.path.clone()).collect();
        files.sort();
        installed.distributions.push(Distribution {
            name: wheel.name().to_owned(),
            version: wheel.version().to_owned(),
            wheel: wheel.file().to_owned(),
            dist_info: one.below(&site.site_packages, wheel.dist_info())?,
            files,
        });
        installed.entries.append(&mut one.entries);
    }
    installed.warnings = shadowed(&installed.entries);
    Ok(installed)
}

/// Modules `x.py` beside packages `x/`: Python takes the package (R33).
fn shadowed(entries: &[Entry]) -> Vec<String> {
    let packages: BTreeSet<&str> =
        entries.iter().filter_map(|e| e.path.as_str().strip_suffix("/__init__.py")).collect();
    let modules = entries.iter().filter_map(|e| Some((e.path.as_str().strip_suffix(".py")?, e)));
    let found = modules.filter(|(stem, _)| packages.contains(stem));
    found.map(|(stem, e)| format!("{}: {} is hidden by the package {stem}/", e.from, e.path.as_str())).collect()
}

/// Files of .dist-info that tell of an installation, not of the distribution; ours are fixed (R26).
const OWN: [&str; 7] =
    ["RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"];

/// Most bytes of a Python script of .data/scripts; those are read whole to change their first line.
const SCRIPT: u64 = 4 << 20;

struct One<'a> {
    wheel: &'a Wheel,
    site: &'a Site,
    entries: Vec<Entry>,
    rows: Vec<Row>,
}

impl One<'_> {
    fn install(&mut self) -> Result<(), WheelError> {
        let (data, dist_info) = (format!("{}/", self.wheel.data()), format!("{}/", self.wheel.dist_info()));
        for (member, row) in self.wheel.files() {
            let name = member.name.as_str();
            if name.strip_prefix(&dist_info).is_some_and(|n| OWN.contains(&n)) {
                continue;
            }
            if !self.site.pyc && (name.ends_with(".pyc") || name.split('/').any(|c| c == "__pycache__")) {
                return Err(self.refused(name, "it is a compiled module; those are taken only if the image says so"));
            }
            match name.strip_prefix(&data) {
                Some(rest) => self.data(member, row, rest)?,
                None => {
                    let path = self.below(&self.site.site_packages, name)?;
                    self.copy(member, row, path, false);
                }
            }
        }
        for script in self.wheel.scripts() {
            let path = self.below(&self.site.bin, script.name())?;
            self.own(path, 0o755, script::text(script, &self.site.python).into_bytes());
        }
        let installer = self.below(&self.site.site_packages, &format!("{dist_info}INSTALLER"))?;
        self.own(installer, 0o644, b"sparklane\n".to_vec());
        self.record(&dist_info)
    }

    /// RECORD comes last: it lists everything else. The same path twice within one wheel is left to the layer to name.
    fn record(&mut self, dist_info: &str) -> Result<(), WheelError> {
        let path = self.below(&self.site.site_packages, &format!("{dist_info}RECORD"))?;
        self.rows.push(Row { path: self.relative(&path), sha256: None, size: None });
        let text = record::write(&self.rows);
        self.entry(path, 0o644, Body::Bytes(text.into_bytes()));
        Ok(())
    }

    /// A file of .data goes where its first component says (R28).
    fn data(&mut self, member: &Member, row: &Row, rest: &str) -> Result<(), WheelError> {
        let (key, rest) =
            rest.split_once('/').ok_or_else(|| self.refused(&member.name, "it lies in no folder of .data"))?;
        let site = self.site;
        let path = match key {
            "purelib" | "platlib" => self.below(&site.site_packages, rest)?,
            "data" => self.below(&site.data, rest)?,
            "headers" => {
                let headers = site.headers.as_ref();
                let headers =
                    headers.ok_or_else(|| self.refused(&member.name, "the image names no folder for C headers"))?;
                self.below(headers, &format!("{}/{rest}", self.wheel.name()))?
            }
            "scripts" => {
                check_name(rest).map_err(|why| self.refused(&member.name, why))?;
                return self.script(member, row, self.below(&site.bin, rest)?);
            }
            other => return Err(self.refused(&member.name, format!("no wheel has a folder {other} in .data"))),
        };
        self.copy(member, row, path, false);
        Ok(())
    }

    fn script(&mut self, member: &Member, row: &Row, path: TreePath) -> Result<(), WheelError> {
        let head = self.wheel.archive().head(member, script::MARK.len())?;
        if head != script::MARK {
            self.copy(member, row, path, true);
            return Ok(());
        }
        let bytes = self.wheel.archive().read(member, SCRIPT)?;
        if Some(<[u8; 32]>::from(Sha256::digest(&bytes))) != row.sha256 {
            return Err(self.refused(&member.name, "its hash is not that of RECORD"));
        }
        let bytes = script::rewritten(&bytes, &self.site.python).unwrap_or(bytes);
        self.own(path, 0o755, bytes);
        Ok(())
    }

    /// A file as the wheel has it. Only whether it may run is taken of its mode (R11).
    fn copy(&mut self, member: &Member, row: &Row, path: TreePath, run: bool) {
        let mode = if run || member.executable { 0o755 } else { 0o644 };
        self.rows.push(Row { path: self.relative(&path), sha256: row.sha256, size: Some(member.size) });
        self.entry(path, mode, self.wheel.archive().body(member, row.sha256));
    }

    /// A file of ours.
    fn own(&mut self, path: TreePath, mode: u32, bytes: Vec<u8>) {
        let (sha256, size) = (Some(Sha256::digest(&bytes).into()), Some(bytes.len() as u64));
        self.rows.push(Row { path: self.relative(&path), sha256, size });
        self.entry(path, mode, Body::Bytes(bytes));
    }

    fn entry(&mut self, path: TreePath, mode: u32, body: Body) {
        let meta = Meta { mode, uid: 0, gid: 0, mtime: self.site.mtime };
        self.entries.push(Entry { path, meta, node: Node::File(body), from: self.wheel.file().to_owned() });
    }

    fn below(&self, folder: &TreePath, rest: &str) -> Result<TreePath, WheelError> {
        TreePath::new(format!("{}/{rest}", folder.as_str())).map_err(|why| self.refused(rest, why))
    }

    /// A path as RECORD has it: relative to the folder of modules.
    fn relative(&self, path: &TreePath) -> String {
        let (mut from, mut to) =
            (self.site.site_packages.as_str().split('/').peekable(), path.as_str().split('/').peekable());
        while from.peek().is_some() && from.peek() == to.peek() {
            from.next();
            to.next();
        }
        from.map(|_| "..").chain(to).collect::<Vec<_>>().join("/")
    }

    fn refused(&self, part: &str, why: impl Into<String>) -> WheelError {
        WheelError::refused(self.wheel.file(), part, why)
    }
}
