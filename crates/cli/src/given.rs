//! Files that a person names: what somebody sent, or a slip, need not be a file that ends.

/// A regular file's bytes, `most` of them at most: a pipe would wait for ever, a device need not end.
///
/// # Errors
/// Words without the file's name.
pub fn bytes(path: &str, most: u64) -> Result<Vec<u8>, String> {
    let found = std::fs::metadata(path).map_err(|e| e.to_string())?;
    if !found.is_file() {
        return Err("it is no regular file".to_owned());
    }
    if found.len() > most {
        return Err(format!("it is longer than {most} bytes"));
    }
    std::fs::read(path).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_that_end_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        std::fs::write(&file, "four").unwrap();
        let read = |most| bytes(file.to_str().unwrap(), most);
        assert_eq!((read(4).unwrap(), read(3).is_err()), (b"four".to_vec(), true));
        for odd in [dir.path().to_str().unwrap(), "/dev/zero", "/no/such/file"] {
            assert!(bytes(odd, 4).is_err(), "{odd}");
        }
    }
}
