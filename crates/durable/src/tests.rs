//! Old or new, never half; nothing left behind. The full disk needs root, as CI has it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};

use super::*;

fn temp() -> (tempfile::TempDir, Utf8PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = Utf8PathBuf::from_path_buf(dir.path().to_path_buf()).unwrap();
    (dir, path)
}

fn names(dir: &Utf8Path) -> Vec<String> {
    let mut names: Vec<String> = dir.read_dir_utf8().unwrap().map(|e| e.unwrap().file_name().to_owned()).collect();
    names.sort();
    names
}

/// A file system of this test's own.
struct Small(Utf8PathBuf);

impl Small {
    fn over(dir: &Utf8Path) -> Self {
        mount("tmpfs", dir.as_str(), "tmpfs", MountFlags::empty(), c"size=64k").unwrap();
        Self(dir.to_owned())
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        unmount(self.0.as_str(), UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn a_file_gets_content_mode_and_owner() {
    let (_guard, dir) = temp();
    let file = dir.join("a");
    write(&file, b"old", 0o640).unwrap();
    write_owned(&file, b"new", 0o604, (12, 34)).unwrap();
    let meta = fs::metadata(&file).unwrap();
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o604, 12, 34));
    assert_eq!(fs::read(&file).unwrap(), b"new");
    link(&file, "/nowhere").unwrap();
    assert_eq!(fs::read_link(&file).unwrap().to_str(), Some("/nowhere"));
    remove(&file).unwrap();
    remove(&file).unwrap();
    assert!(names(&dir).is_empty());
}

#[test]
fn a_full_disk_leaves_the_old_file_and_nothing_else() {
    let (_guard, dir) = temp();
    let small = Small::over(&dir);
    write(&small.0.join("a"), b"old", 0o644).unwrap();
    let error = write(&small.0.join("a"), &vec![7; 256 * 1024], 0o644).unwrap_err();
    assert_eq!(error.source.kind(), io::ErrorKind::StorageFull, "{error}");
    assert!(error.to_string().starts_with(&format!("write {}: ", small.0.join("a"))), "{error}");
    assert_eq!(fs::read(small.0.join("a")).unwrap(), b"old");
    assert_eq!(names(&small.0), ["a"]);
}

#[test]
fn a_read_only_disk_leaves_all_as_it_was() {
    let (_guard, dir) = temp();
    let small = Small::over(&dir);
    write(&small.0.join("a"), b"old", 0o644).unwrap();
    mount_remount(small.0.as_str(), MountFlags::RDONLY, c"").unwrap();
    for failed in [write(&small.0.join("a"), b"new", 0o644), link(&small.0.join("a"), "x"), remove(&small.0.join("a"))]
    {
        assert_eq!(failed.unwrap_err().source.kind(), io::ErrorKind::ReadOnlyFilesystem);
    }
    assert_eq!(fs::read(small.0.join("a")).unwrap(), b"old");
}

#[test]
fn what_cannot_be_renamed_leaves_no_temporary_file() {
    let (_guard, dir) = temp();
    fs::create_dir(dir.join("d")).unwrap();
    write(&dir.join("d"), b"x", 0o644).unwrap_err();
    link(&dir.join("d"), "x").unwrap_err();
    write(&dir.join("none/x"), b"x", 0o644).unwrap_err();
    write(Utf8Path::new("/"), b"x", 0o644).unwrap_err();
    assert_eq!(names(&dir), ["d"]);
}

#[test]
fn what_killed_writers_left_goes_and_what_living_ones_write_stays() {
    let (_guard, dir) = temp();
    // No process has this number: it is beyond the kernel's largest.
    let dead = format!(".a.{}-0{SUFFIX}", 4_194_305);
    let living = format!(".a.{}-9999{SUFFIX}", std::process::id());
    let old = format!(".a{SUFFIX}");
    let others = format!(".a.b{SUFFIX}");
    for name in [&dead, &living, &old, &others] {
        fs::write(dir.join(name), "half").unwrap();
    }
    write(&dir.join("a"), b"whole", 0o600).unwrap();
    let mut left = vec![living, others, "a".to_owned()];
    left.sort();
    assert_eq!(names(&dir), left);
    fs::write(dir.join(&dead), "half").unwrap();
    remove(&dir.join("a")).unwrap();
    assert_eq!(names(&dir), left[..2]);
}

#[test]
fn many_writers_of_one_file_leave_one_of_theirs_whole() {
    let (_guard, dir) = temp();
    let file = dir.join("a");
    std::thread::scope(|scope| {
        for n in 0..8u8 {
            let file = &file;
            scope.spawn(move || (0..20).for_each(|_| write(file, &[n; 4096], 0o644).unwrap()));
        }
    });
    let bytes = fs::read(&file).unwrap();
    assert_eq!((bytes.len(), bytes.iter().all(|b| *b == bytes[0])), (4096, true));
    assert_eq!(names(&dir), ["a"]);
}

#[test]
fn publishing_names_the_file() {
    let (_guard, dir) = temp();
    fs::write(dir.join("t"), "x").unwrap();
    let file = File::open(dir.join("t")).unwrap();
    publish(&file, &dir.join("t"), &dir.join("b")).unwrap();
    assert_eq!(names(&dir), ["b"]);
    let error = publish(&file, &dir.join("t"), &dir.join("c")).unwrap_err();
    assert_eq!((error.what, error.path), ("rename to", dir.join("c")));
}
