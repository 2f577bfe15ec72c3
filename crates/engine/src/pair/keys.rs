//! The keys that prove heartbeats: 32 random bytes per release, brought over ssh when it is staged.

use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ring::{digest, hmac};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Keys that are looked at, newest first. Nodes keep fewer.
const MOST: usize = 8;

/// One key. It is never shown.
#[derive(Clone)]
pub struct Key {
    name: [u8; 8],
    hmac: hmac::Key,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    /// The key of these bytes.
    #[must_use]
    pub fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        let mut name = [0; 8];
        let mut of = digest::Context::new(&digest::SHA256);
        of.update(b"sparklane heartbeat key");
        of.update(bytes);
        name.copy_from_slice(&of.finish().as_ref()[..8]);
        Self { name, hmac: hmac::Key::new(hmac::HMAC_SHA256, bytes) }
    }

    /// What names it on the wire.
    #[must_use]
    pub fn name(&self) -> [u8; 8] {
        self.name
    }

    pub(super) fn hmac(&self) -> &hmac::Key {
        &self.hmac
    }
}

/// The keys of a folder, newest first. A file that others may read, or that holds no key, is left out and told of.
#[must_use]
pub fn read(folder: &Path) -> Vec<Key> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<(std::time::SystemTime, PathBuf)> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            Some((entry.metadata().ok()?.modified().ok()?, entry.path()))
        })
        .collect();
    files.sort();
    let key = |path: &PathBuf| {
        read_one(path).inspect_err(|why| tracing::warn!("{}: {why}; it is not used", path.display())).ok()
    };
    files.iter().rev().take(MOST).filter_map(|(_, path)| key(path)).collect()
}

/// True when something is in the folder, usable or not.
#[must_use]
pub fn any(folder: &Path) -> bool {
    std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}

fn read_one(path: &Path) -> Result<Key, String> {
    let mut file = std::fs::File::options()
        .read(true)
        .custom_flags(i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0))
        .open(path)
        .map_err(|e| e.to_string())?;
    let meta = file.metadata().map_err(|e| e.to_string())?;
    if !meta.is_file() || meta.mode() & 0o077 != 0 {
        return Err("must be a regular file of mode 0600".to_owned());
    }
    let mut bytes = [0; KEY_BYTES];
    file.read_exact(&mut bytes).map_err(|_| "is cut short".to_owned())?;
    Ok(Key::new(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn only_private_whole_files_are_keys() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(&dir.path().join("none")).is_empty());
        let write = |name: &str, bytes: &[u8], mode: u32| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        write("good", &[1; 32], 0o600);
        write("open", &[2; 32], 0o640);
        write("short", &[3; 31], 0o600);
        std::os::unix::fs::symlink("good", dir.path().join("link")).unwrap();
        let keys = read(dir.path());
        assert_eq!(keys.iter().map(Key::name).collect::<Vec<_>>(), [Key::new(&[1; 32]).name()]);
        assert_eq!(format!("{keys:?}"), "[Key(…)]");
    }
}
