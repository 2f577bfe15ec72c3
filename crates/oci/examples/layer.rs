//! The layer of a lock, made and checked, as `cargo xtask bench image` measures it: `layer LOCK WHEELS OUT`. Prints the
//! layer's digest, its bytes and the peak of this process's anonymous memory in bytes.

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;

use camino::Utf8PathBuf;
use sparklane_oci::elf::Collect;
use sparklane_oci::layer::{self, TreePath};
use sparklane_oci::wheel::{Interpreter, Lock, Site, install};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<Utf8PathBuf> = std::env::args().skip(1).map(Utf8PathBuf::from).collect();
    let [lock, wheels, out] = arguments.as_slice() else { return Err("usage: layer LOCK WHEELS OUT".into()) };
    let lock = Lock::read(lock)?;
    let site = Site {
        target: lock.target()?,
        site_packages: TreePath::new("usr/local/lib/python3.12/dist-packages")?,
        bin: TreePath::new("usr/local/bin")?,
        data: TreePath::new("usr/local")?,
        headers: None,
        python: Interpreter::new("/usr/bin/python3")?,
        mtime: 1_700_000_000,
        pyc: false,
    };
    let mut entries = install(&lock.open(wheels)?, &site)?.entries;
    entries.extend(layer::directories(&entries, |path| site.site_packages.as_str().starts_with(path), site.mtime));
    let folder = out.parent().ok_or("the output has no folder")?;
    let spool = folder.join(".spool");
    let mut collect = Collect::new(File::options().read(true).write(true).create(true).truncate(true).open(&spool)?);
    std::fs::remove_file(&spool)?;
    let written = layer::write_watched(&entries, &mut BufWriter::new(File::create(out)?), &mut collect)?;
    let elf = collect.found.len();
    println!("{} {} {} {elf}", written.digest, written.size, peak()?);
    Ok(())
}

/// The peak of resident memory less what is mapped of files now: an upper bound of the anonymous peak.
fn peak() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kib = |key: &str| -> Option<u64> {
        let row = status.lines().find_map(|l| l.strip_prefix(key))?;
        row.split_whitespace().next()?.parse().ok()
    };
    let (peak, files) = kib("VmHWM:").zip(kib("RssFile:")).ok_or("no memory figures in /proc/self/status")?;
    Ok(peak.saturating_sub(files) * 1024)
}
