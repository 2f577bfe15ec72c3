use super::*;
use crate::layer::Entry;
use crate::verify::tests::{Made, file, usrmerge, whiteout};

fn image(entries: &[Entry]) -> (Made, Digest) {
    let made = Made::new().base(usrmerge).ours(entries);
    let digest = made.finish();
    (made, digest)
}

fn between(a: &(Made, Digest), b: &(Made, Digest)) -> Difference {
    let side = |x: &'_ (Made, Digest)| -> (Layout, Digest) { (x.0.layout.clone(), x.1.clone()) };
    let ((la, da), (lb, db)) = (side(a), side(b));
    diff(Side { layout: &la, manifest: &da }, Side { layout: &lb, manifest: &db }).unwrap()
}

#[test]
fn one_image_has_no_difference() {
    let a = image(&[file("usr/lib/x")]);
    let found = between(&a, &image(&[file("usr/lib/x")]));
    assert!(found.none() && found.values.is_empty() && found.layers.is_empty());
    assert_eq!(found.common, 2);
}

#[test]
fn files_that_came_went_and_changed_are_named() {
    let mut other = file("usr/lib/same");
    other.meta.mode = 0o755;
    let a = image(&[file("usr/lib/same"), file("usr/lib/gone")]);
    let b = image(&[other, file("usr/lib/new"), whiteout("usr/lib/.wh.old")]);
    let found = between(&a, &b);
    assert_eq!(found.common, 1);
    let [layer] = &found.layers[..] else { panic!("{found:?}") };
    let expected = ["+ usr/lib/.wh.old", "- usr/lib/gone", "+ usr/lib/new", "~ usr/lib/same: mode 0644, 0755"];
    assert_eq!((layer.layer, &layer.files[..]), (1, &expected.map(str::to_owned)[..]));
}

#[test]
fn a_layer_that_is_not_here_is_said_to_be_so() {
    let (a, b) = (image(&[file("usr/lib/x")]), image(&[file("usr/lib/y")]));
    let layer = a.0.layout.manifest(&a.1).unwrap().layers[1].digest.clone();
    std::fs::remove_file(a.0.layout.own_path(&layer)).unwrap();
    assert!(between(&a, &b).layers[0].files[0].contains("is not in"));
}

#[test]
fn values_are_compared_by_name() {
    let value = |text: &str| -> Value { serde_json::from_str(text).unwrap() };
    let mut found = Vec::new();
    let (a, b) = (value(r#"{"e":{"A":"1","B":"2"},"x":1}"#), value(r#"{"e":{"A":"1","B":"3"},"y":1}"#));
    compare("config", Some(&a), Some(&b), &mut found);
    let at: Vec<&str> = found.iter().map(|c| c.at.as_str()).collect();
    assert_eq!(at, ["config.e.B", "config.x", "config.y"]);
    let env = value(r#"["A=1","B=x=y","C"]"#);
    assert_eq!(by_name("Env", &env), value(r#"{"A":"1","B":"x=y","C":""}"#));
}
