//! The API key: a 0600 file that is named in the generation, never its content.
//!
//! The file is bind-mounted read-only into the container and `sparklane entry` puts its content in the engine's
//! environment, so neither `docker inspect`, argv nor a log holds the key.

use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use crate::error::EngineError;
use crate::redact::Redacted;

/// Where the key file is mounted in the container.
pub const KEY_IN_CONTAINER: &str = "/run/sparklane/api-key";
/// Where the node's tool is mounted in the container.
pub const TOOL_IN_CONTAINER: &str = "/run/sparklane/tool";
/// The environment variable that vLLM reads.
pub const KEY_ENV: &str = "VLLM_API_KEY";

const MAX_KEY: u64 = 4096;

/// Reads a key file.
///
/// # Errors
/// When it is no regular file, others than its owner can reach it, it belongs to someone else, or it holds no usable key.
pub fn read(path: &Path) -> Result<Redacted<String>, EngineError> {
    let fail = |why: String| EngineError::KeyFile { path: path.display().to_string(), why };
    let file = std::fs::File::options()
        .read(true)
        .custom_flags(i32::try_from(rustix::fs::OFlags::NOFOLLOW.bits()).unwrap_or(0))
        .open(path)
        .map_err(|e| fail(format!("cannot be opened ({e})")))?;
    // Looked at through the open file: nobody can swap it between check and read.
    let meta = file.metadata().map_err(|e| fail(format!("cannot be looked at ({e})")))?;
    if !meta.is_file() {
        return Err(fail("is no regular file".to_owned()));
    }
    if meta.mode() & 0o177 != 0 {
        return Err(fail(format!("has mode {:04o}; it must be 0600 (chmod 600)", meta.mode() & 0o7777)));
    }
    let own = rustix::process::geteuid().as_raw();
    if meta.uid() != own && meta.uid() != 0 {
        return Err(fail(format!("belongs to uid {}, not to root", meta.uid())));
    }
    let mut text = String::new();
    file.take(MAX_KEY).read_to_string(&mut text).map_err(|e| fail(format!("cannot be read as text ({e})")))?;
    let key = text.trim();
    if key.is_empty() || !key.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(fail("must hold one key of printable ASCII without spaces".to_owned()));
    }
    Ok(Redacted::new(key.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn write(content: &str, mode: u32) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    #[test]
    fn only_a_private_file_with_one_key_is_taken() {
        let (_d, path) = write("sk-1\n", 0o600);
        assert_eq!(read(&path).unwrap().expose(), "sk-1");
        for (content, mode) in [("sk-1", 0o644), ("sk-1", 0o640), ("sk-1", 0o700), ("", 0o600), ("a b", 0o600)] {
            let (_d, path) = write(content, mode);
            let error = read(&path).unwrap_err();
            assert_eq!(error.exit_code(), 78, "{content:?} {mode:o}");
            assert!(!error.to_string().contains("sk-1"));
        }
        let link = path.with_file_name("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(read(&link).is_err());
    }
}
