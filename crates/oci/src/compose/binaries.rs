//! Whether the loader of the finished image can start what our layers bring: machine, needed libraries, glibc.

use std::collections::BTreeSet;
use std::fs::File;

use camino::Utf8Path;

use crate::base::TreeIndex;
use crate::elf::{Collect, Elf};
use crate::error::OciError;
use crate::layer::TreePath;
use crate::manifest::Platform;
use crate::wheel::{Arch, glibc_version};

/// What ELF files may need: grows with each layer of ours.
#[derive(Debug)]
pub struct Binaries {
    /// `e_machine` of the image; none if it is unknown here.
    machine: Option<u16>,
    glibc: Option<(u32, u32)>,
    /// Names that libraries are asked for by; none if the base's tree is unknown.
    names: Option<BTreeSet<String>>,
}

impl Binaries {
    /// What a base has. Without a tree index only the machine is known.
    #[must_use]
    pub fn new(platform: &Platform, index: Option<&TreeIndex>) -> Self {
        let machine = Arch::of_image(&platform.architecture).map(Arch::elf);
        let names = index.map(|index| {
            let libraries = index.libraries.iter().filter(|(_, l)| machine.is_none_or(|m| m == l.machine));
            libraries.flat_map(|(path, l)| [Some(base(path)), l.soname.clone()]).flatten().collect()
        });
        Self { machine, glibc: index.and_then(|i| i.glibc.as_deref()).and_then(glibc_version), names }
    }

    /// Judges the ELF files of a layer of ours; they count as there for it and for later ones.
    ///
    /// # Errors
    /// Every file that the loader could not start, one to a line.
    pub fn check(&mut self, found: &[(TreePath, Elf)]) -> Result<(), String> {
        if let Some(names) = &mut self.names {
            let own = found.iter().flat_map(|(path, elf)| [Some(base(path.as_str())), elf.soname.clone()]);
            names.extend(own.flatten());
        }
        let wrong: Vec<String> = found.iter().flat_map(|(path, elf)| self.judge(path.as_str(), elf)).collect();
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    }

    fn judge(&self, path: &str, elf: &Elf) -> Vec<String> {
        let mut wrong = Vec::new();
        if let Some(machine) = self.machine.filter(|m| *m != elf.machine) {
            wrong.push(format!("{path} is for ELF machine {}, the image for {machine}", elf.machine));
            return wrong;
        }
        if let Some((has, needs)) = self.glibc.zip(elf.glibc).filter(|(has, needs)| needs > has) {
            wrong.push(format!("{path} needs glibc {}.{}, the base has {}.{}", needs.0, needs.1, has.0, has.1));
        }
        if let Some(names) = &self.names {
            // The loader itself is no library of a folder in every base's index.
            let missing = elf.needed.iter().filter(|n| !names.contains(*n) && !n.starts_with("ld-linux"));
            wrong
                .extend(missing.map(|name| format!("{path} needs {name}, which neither the base nor our layers have")));
        }
        wrong
    }
}

fn base(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// Somebody who collects the ELF files of a layer; the file that is looked at lies nameless in `folder`.
///
/// # Errors
/// A folder that cannot be written.
pub fn collect(folder: &Utf8Path) -> Result<Collect, OciError> {
    let path = folder.join(".elf");
    let spool = File::options().read(true).write(true).create_new(true).open(&path);
    let spool = spool.map_err(OciError::io("create", &path))?;
    std::fs::remove_file(&path).map_err(OciError::io("remove", &path))?;
    Ok(Collect::new(spool))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(machine: u16, needed: &str, glibc: (u32, u32)) -> (TreePath, Elf) {
        let needed = vec![needed.to_owned(), "ld-linux-aarch64.so.1".to_owned()];
        (TreePath::new("usr/x.so").unwrap(), Elf { machine, needed, glibc: Some(glibc), ..Elf::default() })
    }

    fn known(names: &[&str]) -> Binaries {
        let names = Some(names.iter().map(|n| (*n).to_owned()).collect());
        Binaries { machine: Some(183), glibc: Some((2, 39)), names }
    }

    #[test]
    fn what_the_loader_could_not_start_is_named() {
        let check = |file| known(&["libc.so.6"]).check(&[file]);
        assert_eq!(check(elf(183, "libc.so.6", (2, 17))), Ok(()));
        assert!(check(elf(62, "libc.so.6", (2, 17))).unwrap_err().contains("ELF machine 62, the image for 183"));
        assert!(check(elf(183, "libc.so.6", (2, 40))).unwrap_err().contains("needs glibc 2.40, the base has 2.39"));
        assert!(check(elf(183, "libfoo.so.1", (2, 17))).unwrap_err().contains("needs libfoo.so.1, which neither"));
    }

    #[test]
    fn libraries_of_ours_count_from_then_on() {
        let mut binaries = known(&["libc.so.6"]);
        let own = (
            TreePath::new("opt/libfoo-1.so").unwrap(),
            Elf { machine: 183, soname: Some("libfoo.so.1".into()), ..Elf::default() },
        );
        assert_eq!(binaries.check(&[own]), Ok(()));
        assert_eq!(binaries.check(&[elf(183, "libfoo.so.1", (2, 17))]), Ok(()));
    }

    #[test]
    fn without_an_index_only_the_machine_is_judged() {
        let platform = Platform { os: "linux".into(), architecture: "arm64".into(), variant: None };
        let mut binaries = Binaries::new(&platform, None);
        assert_eq!(binaries.check(&[elf(183, "libfoo.so.1", (2, 99))]), Ok(()));
        assert!(binaries.check(&[elf(62, "libc.so.6", (2, 17))]).is_err());
    }
}
