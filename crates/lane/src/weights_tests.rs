use proptest::prelude::*;
use serde_json::json;

use super::*;

fn file(path: &str) -> serde_json::Value {
    json!({"path": path, "size": 1, "sha256": "0".repeat(64)})
}

fn with(paths: &[&str]) -> Result<WeightsManifest, Vec<Problem>> {
    let files: Vec<_> = paths.iter().map(|p| file(p)).collect();
    WeightsManifest::read(&json!({"model": "a/b", "revision": "0".repeat(40), "files": files}))
}

#[test]
fn a_manifest_cannot_name_a_file_outside_its_folder() {
    assert!(with(&["encoding/x.py"]).is_ok());
    for bad in ["../x", "/etc/passwd", "a//b", ".", "", "a/..", "a\\b", "a\nb", "a\0b"] {
        assert!(with(&[bad]).is_err(), "{bad:?}");
    }
    assert!(with(&[&"x".repeat(256)]).is_err());
    assert!(with(&[&"x/".repeat(600)]).is_err());
}

#[test]
fn two_paths_are_never_one_file() {
    for bad in [&["a", "a"][..], &["Config.json", "config.json"], &["a", "a/b"], &["A/x", "a"], &["a/b/c", "a/B"]] {
        assert!(with(bad).is_err(), "{bad:?}");
    }
    assert!(with(&["a", "ab/c", "a.b"]).is_ok());
}

#[test]
fn a_model_and_a_revision_are_pinned_and_safe_in_a_name() {
    let read = |model: &str, revision: &str| {
        WeightsManifest::read(&json!({"model": model, "revision": revision, "files": [file("a")]}))
    };
    let commit = "0".repeat(40);
    assert!(read("a/b", &commit).is_ok());
    for bad in ["a", "a/b/c", "a/..", "../b", "a/b--c", "a/b c", "a/", ".a/b"] {
        assert!(read(bad, &commit).is_err(), "{bad}");
    }
    assert_eq!(read("a", "main").map_err(|p| p.len()), Err(2));
    assert!(WeightsManifest::read(&json!({"model": "a/b", "revision": commit, "files": []})).is_err());
}

#[test]
fn the_id_is_of_the_content_and_not_of_its_layout() {
    let one = with(&["a", "b"]).unwrap();
    let two = with(&["b", "a"]).unwrap();
    assert_eq!(one.id(), two.id());
    assert_eq!(one.to_text(), two.to_text());
    assert_eq!(WeightsManifest::parse(&one.to_text()).unwrap().id(), one.id());
    let mut other = one.clone();
    other.files[0].size = 2;
    assert_ne!(one.id(), other.id());
    assert_eq!(one.store_name(), format!("a--b@000000000000-{}", &one.id()[..12]));
}

#[test]
fn sizes_that_wrap_are_refused() {
    let big = |size: u64| json!({"path": size.to_string(), "size": size, "sha256": "0".repeat(64)});
    let read = |files: Vec<serde_json::Value>| {
        WeightsManifest::read(&json!({"model": "a/b", "revision": "0".repeat(40), "files": files}))
    };
    assert_eq!(read(vec![big(1 << 40), big(1 << 41)]).unwrap().bytes(), 3 << 40);
    assert!(read(vec![big(u64::MAX)]).is_err());
    assert!(read(vec![big(1 << 62), big((1 << 62) + 1)]).is_err());
}

#[test]
fn a_hundred_thousand_files_take_no_square_of_time() {
    let paths: Vec<String> = (0..100_000).map(|n| format!("d{}/f{n}", n % 97)).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    assert_eq!(with(&paths).unwrap().files.len(), 100_000);
    let same = vec!["x"; 100_000];
    assert_eq!(with(&same).unwrap_err().len(), MAX_PROBLEMS);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        let _read = WeightsManifest::parse(&text);
    }

    #[test]
    fn an_accepted_path_stays_below_its_folder(path in "[a./\\\\A\\n]{0,12}") {
        if bad_path(&path).is_none() {
            let mut depth = 0i32;
            for part in std::path::Path::new(&path).components() {
                prop_assert!(matches!(part, std::path::Component::Normal(_)));
                depth += 1;
            }
            prop_assert!(depth > 0);
        }
    }
}
