//! What the loader will ask for of an ELF file: its machine, the libraries that it needs and names, and the glibc.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};

use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use object::read::{ReadCache, ReadRef};
use object::{Endianness, elf};

use crate::layer::{Entry, LayerError, TreePath, Watch};

/// What is read of a file. Names that are not UTF-8 are read with replacement characters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Elf {
    /// `e_machine`, e.g. 183 for aarch64 (see [`crate::wheel::Arch::elf`]).
    pub machine: u16,
    /// The loader that a program asks for.
    pub interpreter: Option<String>,
    /// Libraries that it needs, in its order.
    pub needed: Vec<String>,
    /// The name that others need it by.
    pub soname: Option<String>,
    /// Where it looks for them before the usual places (RUNPATH, else RPATH), `:` between.
    pub runpath: Option<String>,
    /// The newest symbol version `GLIBC_x.y` that it needs.
    pub glibc: Option<(u32, u32)>,
}

/// Most entries and characters that are read; hostile files name absurd numbers.
const MOST: u64 = 1 << 16;

type Header = elf::FileHeader64<Endianness>;

/// Reads a file's bytes; none if they are no ELF file.
///
/// # Errors
/// An ELF file that is not of 64 bits or is broken.
pub fn read(bytes: &[u8]) -> Result<Option<Elf>, String> {
    parse(bytes)
}

/// Reads of a file only what is needed.
///
/// # Errors
/// Those of [`read`].
pub fn read_file(file: &File) -> Result<Option<Elf>, String> {
    parse(&ReadCache::new(file))
}

fn parse<'d, R: ReadRef<'d>>(data: R) -> Result<Option<Elf>, String> {
    let magic = data.read_bytes_at(0, 5);
    match magic {
        Ok([0x7f, b'E', b'L', b'F', 2]) => {}
        Ok([0x7f, b'E', b'L', b'F', _]) => return Err("it is an ELF file, but not of 64 bits".to_owned()),
        _ => return Ok(None),
    }
    let broken = |e: object::read::Error| format!("it is a broken ELF file: {e}");
    let header = Header::parse(data).map_err(broken)?;
    let endian = header.endian().map_err(broken)?;
    let segments = header.program_headers(endian, data).map_err(broken)?;
    let mut elf = Elf { machine: header.e_machine(endian).0, ..Elf::default() };
    let image = Image { data, endian, segments };
    for segment in segments {
        if let Some(dynamic) = segment.dynamic(endian, data).map_err(broken)? {
            image.dynamic(dynamic, &mut elf)?;
        }
        if let Some(name) = segment.interpreter(endian, data).map_err(broken)? {
            elf.interpreter = Some(String::from_utf8_lossy(name).into_owned());
        }
    }
    Ok(Some(elf))
}

/// A file as it will lie in memory.
struct Image<'d, R> {
    data: R,
    endian: Endianness,
    segments: &'d [elf::ProgramHeader64<Endianness>],
}

impl<'d, R: ReadRef<'d>> Image<'d, R> {
    /// Where in the file an address lies, and how many bytes follow it there.
    fn place(&self, address: u64) -> Result<(u64, u64), String> {
        let loaded = self.segments.iter().filter(|s| s.p_type(self.endian) == elf::PT_LOAD);
        let place = loaded.filter_map(|s| {
            let into = address.checked_sub(s.p_vaddr(self.endian))?;
            let (offset, size) = s.file_range(self.endian);
            Some((offset.checked_add(into)?, size.checked_sub(into).filter(|left| *left > 0)?))
        });
        let mut place = place;
        place.next().ok_or_else(|| "it is a broken ELF file: an address lies in no segment".to_owned())
    }

    fn dynamic(&self, dynamic: &[elf::Dyn64<Endianness>], elf: &mut Elf) -> Result<(), String> {
        let dynamic = || {
            let rows = dynamic.iter().map(|d| (d.tag(self.endian), d.val(self.endian)));
            rows.take_while(|(tag, _)| *tag != elf::DT_NULL).take(MOST as usize)
        };
        let value = |wanted| dynamic().find(|(tag, _)| *tag == wanted).map(|(_, value)| value);
        let Some(strings) = value(elf::DT_STRTAB) else { return Ok(()) };
        let strings = self.place(strings)?;
        for (tag, value) in dynamic() {
            match tag {
                elf::DT_NEEDED => elf.needed.push(self.string(strings, value)?),
                elf::DT_SONAME => elf.soname = Some(self.string(strings, value)?),
                elf::DT_RUNPATH => elf.runpath = Some(self.string(strings, value)?),
                elf::DT_RPATH if elf.runpath.is_none() => elf.runpath = Some(self.string(strings, value)?),
                _ => {}
            }
        }
        match value(elf::DT_VERNEED) {
            Some(address) => self.versions(address, strings, elf),
            None => Ok(()),
        }
    }

    fn string(&self, (begin, size): (u64, u64), at: u64) -> Result<String, String> {
        let from = begin.checked_add(at).filter(|_| at < size);
        let until = from.and_then(|f| f.checked_add((size - at).min(MOST)));
        let bytes = from.zip(until).and_then(|(f, u)| self.data.read_bytes_at_until(f..u, 0).ok());
        let bytes = bytes.ok_or("it is a broken ELF file: a name lies outside of its names")?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    /// The chain of needed versions: of each library a chain of its symbols' versions.
    fn versions(&self, address: u64, strings: (u64, u64), elf: &mut Elf) -> Result<(), String> {
        let broken = |()| "it is a broken ELF file: its needed versions are cut off".to_owned();
        let (mut at, _) = self.place(address)?;
        let mut names = BTreeSet::new();
        let mut steps = 0;
        loop {
            let need = self.data.read_at::<elf::Verneed<Endianness>>(at).map_err(broken)?;
            let mut inner = at.saturating_add(need.vn_aux.get(self.endian).into());
            for _ in 0..need.vn_cnt.get(self.endian) {
                let version = self.data.read_at::<elf::Vernaux<Endianness>>(inner).map_err(broken)?;
                names.insert(version.vna_name.get(self.endian));
                inner = inner.saturating_add(version.vna_next.get(self.endian).into());
                steps += 1;
                if steps > MOST {
                    return Err("it is a broken ELF file: it needs absurdly many versions".to_owned());
                }
            }
            match need.vn_next.get(self.endian) {
                0 => break,
                next => at = at.saturating_add(next.into()),
            }
            steps += 1;
        }
        for name in names {
            let name = self.string(strings, name.into())?;
            elf.glibc = elf.glibc.max(glibc(&name));
        }
        Ok(())
    }
}

/// `GLIBC_2.17` as (2, 17).
fn glibc(name: &str) -> Option<(u32, u32)> {
    let mut numbers = name.strip_prefix("GLIBC_")?.split('.');
    let (major, minor) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    Some((major, minor))
}

/// Collects the ELF files of a layer while it is written, without a second reading: each is put into a nameless file of
/// `folder` for the time it takes to look at it, so that memory does not grow with it.
#[derive(Debug)]
pub struct Collect {
    spool: File,
    current: State,
    /// What was found, in the layer's order.
    pub found: Vec<(TreePath, Elf)>,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Fewer bytes came than tell what it is.
    Begun(Vec<u8>),
    Elf,
    Other,
}

impl Collect {
    /// With `spool` as the place for the file that is looked at; it is emptied at will.
    #[must_use]
    pub fn new(spool: File) -> Self {
        Self { spool, current: State::Other, found: Vec::new() }
    }

    fn start(&mut self) -> std::io::Result<()> {
        self.spool.set_len(0)?;
        self.spool.seek(SeekFrom::Start(0)).map(drop)
    }
}

impl Watch for Collect {
    fn begin(&mut self, _: &Entry) -> Result<(), LayerError> {
        self.current = State::Begun(Vec::new());
        Ok(())
    }

    fn piece(&mut self, bytes: &[u8]) -> Result<(), LayerError> {
        match &mut self.current {
            State::Other => Ok(()),
            State::Elf => self.spool.write_all(bytes).map_err(LayerError::Write),
            State::Begun(head) => {
                head.extend(bytes);
                if head.len() < 4 {
                    return Ok(());
                }
                let State::Begun(head) = std::mem::replace(&mut self.current, State::Other) else { return Ok(()) };
                if head.starts_with(b"\x7fELF") {
                    self.current = State::Elf;
                    self.start().and_then(|()| self.spool.write_all(&head)).map_err(LayerError::Write)?;
                }
                Ok(())
            }
        }
    }

    fn end(&mut self, entry: &Entry, _: &[u8; 32]) -> Result<(), LayerError> {
        if self.current != State::Elf {
            return Ok(());
        }
        let refuse = |why| LayerError::Body { from: entry.from.clone(), path: entry.path.as_str().to_owned(), why };
        if let Some(elf) = read_file(&self.spool).map_err(refuse)? {
            self.found.push((entry.path.clone(), elf));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;
    use crate::layer::{Body, Meta, Node};

    const PROGRAM: &str = "/bin/true";

    /// binutils' own reader says the same of a program and a library of this machine.
    #[test]
    fn readelf_says_the_same() {
        let library = std::fs::read_to_string("/proc/self/maps").unwrap();
        let library =
            library.lines().filter_map(|l| l.split_whitespace().nth(5)).find(|p| p.contains("libc.so")).unwrap();
        for path in [PROGRAM, library] {
            let output =
                Command::new("readelf").args(["--dynamic", "--version-info", "--wide", path]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let all = |kind: &str| -> Vec<String> {
                let rows = text.lines().filter(|l| l.contains(&format!("({kind})")));
                rows.map(|l| l.split(['[', ']']).nth(1).unwrap().to_owned()).collect()
            };
            let found = read(&std::fs::read(path).unwrap()).unwrap().unwrap();
            assert_eq!(found.needed, all("NEEDED"), "{path}");
            assert_eq!(found.soname, all("SONAME").pop(), "{path}");
            let needs = text.split("Version needs section").nth(1).unwrap();
            let newest = needs.split_whitespace().filter_map(glibc).max();
            assert_eq!(found.glibc, newest, "{path}");
            assert_eq!(read_file(&File::open(path).unwrap()), Ok(Some(found)));
        }
    }

    #[test]
    fn versions_of_glibc() {
        assert_eq!(glibc("GLIBC_2.17"), Some((2, 17)));
        assert_eq!(glibc("GLIBC_2.2.5"), Some((2, 2)));
        assert_eq!((glibc("GLIBC_PRIVATE"), glibc("GLIBCXX_3.4")), (None, None));
    }

    #[test]
    fn other_files_are_none() {
        assert_eq!(read(b""), Ok(None));
        assert_eq!(read(b"\x7fEL"), Ok(None));
        assert_eq!(read(b"#!/bin/sh\n"), Ok(None));
        assert!(read(b"\x7fELF\x01\x01\x01").unwrap_err().contains("64 bits"));
        assert!(read(b"\x7fELF\x02\x01\x01").unwrap_err().contains("broken"));
    }

    #[test]
    fn elf_files_of_a_layer_are_collected() {
        let program = std::fs::read(PROGRAM).unwrap();
        let meta = Meta { mode: 0o755, uid: 0, gid: 0, mtime: 1_700_000_000 };
        let entry = |path: &str, bytes: &[u8]| Entry {
            path: TreePath::new(path).unwrap(),
            meta,
            node: Node::File(Body::Bytes(bytes.to_vec())),
            from: "test".to_owned(),
        };
        let entries = [entry("a", b"text"), entry("b", &program), entry("c", b"\x7fE"), entry("d", &program)];
        let mut collect = Collect::new(tempfile::tempfile().unwrap());
        crate::layer::write_watched(&entries, &mut Vec::new(), &mut collect).unwrap();
        let paths: Vec<&str> = collect.found.iter().map(|(p, _)| p.as_str()).collect();
        assert_eq!(paths, ["b", "d"]);
        assert_eq!(Some(collect.found[0].1.clone()), read(&program).unwrap());
        let bad = [entry("bad.so", b"\x7fELF\x02\x01\x01")];
        let error = crate::layer::write_watched(&bad, &mut Vec::new(), &mut collect).unwrap_err().to_string();
        assert!(error.contains("bad.so") && error.contains("broken"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn damaged_files_never_panic(changes in proptest::collection::vec((0_usize..2000, any::<u8>()), 0..12), cut in any::<Option<proptest::sample::Index>>()) {
            let mut bytes = std::fs::read(PROGRAM).unwrap();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            let _ = read(&bytes);
        }
    }
}
