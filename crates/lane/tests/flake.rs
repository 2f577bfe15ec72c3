//! The flake's outputs, evaluated without flakes, without a store and without a network.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a helper that fails fails its test

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use sparklane_lane::catalog::{Catalog, any_refused};

/// Evaluates an expression over `flake`, our outputs with a nixpkgs that must not be looked at.
fn evaluate(prebuilt: &Path, expression: &str) -> Result<Value, String> {
    let root = common::root().canonicalize().unwrap();
    let program = format!(
        r#"let flake = import {root}/nix {{
             self = "/self"; nixpkgs = throw "nixpkgs was looked at";
             prebuilt = {prebuilt}; wheelhouse = {root}/nix/wheelhouse;
           }}; in {expression}"#,
        root = root.display(),
        prebuilt = prebuilt.display(),
    );
    let output = Command::new("nix-instantiate")
        .args(["--eval", "--readonly-mode", "--strict", "--json", "--expr", &program])
        .output()
        .unwrap();
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(serde_json::from_slice(&output.stdout).unwrap())
}

/// A prebuilt folder with programs of some systems.
fn prebuilt(systems: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for system in systems {
        fs::create_dir(folder.path().join(system)).unwrap();
        fs::write(folder.path().join(system).join("sparklane"), "").unwrap();
    }
    folder
}

fn names(value: &Value) -> BTreeSet<String> {
    value.as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect()
}

#[test]
fn with_prebuilt_programs_nixpkgs_is_never_looked_at() {
    let folder = prebuilt(&["x86_64-linux", "aarch64-linux"]);
    let all = r#"let values = set: map (n: set.${n}) (builtins.attrNames set); here = set: values set.x86_64-linux; in
      { packages = map (p: p.drvPath) (here flake.packages); checks = map (p: p.drvPath) (here flake.checks);
        apps = map (a: a.program) (here flake.apps); shells = flake.devShells or null; format = flake.formatter or null;
        deploy = map (n: n.profiles.sparklane.path.drvPath) (values flake.deploy.nodes); }"#;
    let found = evaluate(folder.path(), all).unwrap();
    // Two nodes of seven lanes, the tool and its default name, images of three lanes; seven checks; seven apps and the default.
    assert_eq!(found["packages"].as_array().unwrap().len(), 19);
    assert_eq!(found["checks"].as_array().unwrap().len(), 7);
    assert_eq!(found["apps"].as_array().unwrap().len(), 8);
    // Each lane on its cluster, and both default lanes by a shorter name.
    assert_eq!(found["deploy"].as_array().unwrap().len(), 18);
    let none = serde_json::json!({});
    assert_eq!((&found["shells"], &found["format"]), (&none, &none));
}

/// Its place is relative to the flake, which Nix 2.26 knows only once it has the outputs' names.
#[test]
fn the_outputs_names_are_known_without_a_look_at_prebuilt() {
    let found = evaluate(Path::new("(throw \"prebuilt was looked at\")"), "builtins.attrNames flake").unwrap();
    assert!(names(&found).is_superset(&["apps", "lib", "packages", "templates"].map(str::to_owned).into()));
}

#[test]
fn what_a_prebuilt_folder_lacks_is_not_offered() {
    let folder = prebuilt(&["x86_64-linux"]);
    let found = evaluate(folder.path(), "builtins.attrNames flake.packages.x86_64-linux").unwrap();
    let packages = names(&found);
    assert!(packages.contains("generation-lab-lab-a-head"));
    assert!(!packages.iter().any(|p| p.contains("sparks")), "{packages:?}");
}

#[test]
fn without_prebuilt_programs_the_tool_comes_from_nixpkgs() {
    let empty = common::root().join("nix/prebuilt").canonicalize().unwrap();
    let systems = evaluate(&empty, "builtins.attrNames flake.devShells").unwrap();
    assert_eq!(names(&systems), ["aarch64-linux", "x86_64-linux"].map(str::to_owned).into());
    let error = evaluate(&empty, "flake.packages.x86_64-linux.sparklane.drvPath").unwrap_err();
    assert!(error.contains("nixpkgs was looked at"), "{error}");
}

#[test]
fn a_users_flake_gets_one_cluster_and_its_default_lane() {
    let folder = prebuilt(&["x86_64-linux", "aarch64-linux"]);
    let template = common::root().join("nix/template/cluster.nix").canonicalize().unwrap();
    let mine = format!(
        r#"let mine = flake.lib.mkCluster {{ self = "/mine"; cluster = import {}; }}; in
           {{ nodes = builtins.attrNames mine.deploy.nodes; packages = builtins.attrNames mine.packages.x86_64-linux;
              checks = map (n: mine.checks.x86_64-linux.${{n}}.drvPath) (builtins.attrNames mine.checks.x86_64-linux); }}"#,
        template.display()
    );
    let found = evaluate(folder.path(), &mine).unwrap();
    assert_eq!(names(&found["nodes"]), ["home-head", "home-worker"].map(str::to_owned).into());
    assert!(names(&found["packages"]).contains("generation-home-mp-0251-worker"));
    assert!(!names(&found["packages"]).iter().any(|p| p.contains("lab")));
}

/// Nix itself must get along with a lane that the tool refuses, or nothing could be said of any other lane.
#[test]
fn a_lane_without_an_image_spoils_no_other() {
    let folder = prebuilt(&["x86_64-linux", "aarch64-linux"]);
    let root = common::root().canonicalize().unwrap();
    let mine = format!(
        r#"builtins.attrNames (flake.lib.mkCluster {{
             self = "/mine"; cluster = import {}/nix/template/cluster.nix;
             lanes.odd = {{ name = "odd"; imag = "x"; }};
           }}).packages.x86_64-linux"#,
        root.display()
    );
    let packages = names(&evaluate(folder.path(), &mine).unwrap());
    assert!(packages.contains("generation-home-ray-0731-head") && packages.contains("image-ray-0731"), "{packages:?}");
}

/// A composed image that a user has pinned: its own layers belong to the generation; the shipped one is not pinned yet.
#[test]
fn a_users_pinned_image_comes_with_its_generation() {
    let folder = prebuilt(&["x86_64-linux", "aarch64-linux"]);
    let root = common::root().canonicalize().unwrap();
    let mine = format!(
        r#"let
             spec = flake.lib.imageSpecs.anemll-0-1-1-ray;
             digest = "sha256:" + builtins.hashString "sha256" "mine";
             own = {{ manifest = digest; config = digest; name = "anemll-0-1-1-ray"; }};
             mine = images: flake.lib.mkCluster {{
               self = "/mine"; cluster = import {root}/nix/template/cluster.nix; inherit images; pins = {root}/tests/image/pins;
               imageSpecs.anemll-0-1-1-ray = spec // {{ base = spec.base // {{
                 manifest = "sha256:aa3fa428b0b80f7ce6caf26abd6732ccdeafa64c937a5de7350e8e8a505e0616"; config = null; }}; }};
             }};
             drv = images: (mine images).packages.x86_64-linux.generation-home-ray-0731-head;
             image = (mine {{ anemll-0-1-1-ray = flake.lib.catalog.images.anemll-0-1-1-ray // own; }});
           in {{
             unpinned = (drv {{ }}).composed;
             pinned = builtins.unsafeDiscardStringContext "${{image.packages.x86_64-linux.generation-home-ray-0731-head.composed}}";
             same = builtins.unsafeDiscardStringContext "${{image.packages.x86_64-linux.image-ray-0731}}";
             expected = image.packages.x86_64-linux.image-ray-0731.spec.expected.manifest == digest;
             index = builtins.pathExists image.packages.x86_64-linux.image-ray-0731.index;
           }}"#,
        root = root.display()
    );
    let found = evaluate(folder.path(), &mine).unwrap();
    assert_eq!(found["unpinned"], Value::Null, "what is not pinned is no input: nothing deploys it");
    assert_eq!((&found["pinned"], &found["expected"]), (&found["same"], &Value::Bool(true)), "{found:#}");
    assert_eq!(found["index"], true, "the user's pin has a tree index");
}

/// A lock entry whose hash is not its folder's makes Nix ask for the network, or refuse.
#[test]
fn the_lock_matches_the_folders_it_names() {
    let root = common::root().canonicalize().unwrap();
    let lock: Value = serde_json::from_slice(&fs::read(root.join("flake.lock")).unwrap()).unwrap();
    for input in ["prebuilt", "wheelhouse"] {
        let entry = &lock["nodes"][input];
        assert_eq!(entry["parent"], Value::Array(Vec::new()), "newer Nix writes it, and must find it there");
        let hash = entry["locked"]["narHash"].as_str().unwrap();
        let same = format!(
            r#"let path = {}/nix/{input}; in
               builtins.path {{ inherit path; name = "s"; }} == builtins.path {{ inherit path; name = "s"; sha256 = "{hash}"; }}"#,
            root.display()
        );
        assert_eq!(evaluate(&root.join("nix/prebuilt"), &same), Ok(Value::Bool(true)), "{input}");
    }
}

/// A base takes no arguments: whatever a lane mistypes reaches the validator, with its place.
#[test]
fn a_mistyped_key_of_a_lane_over_a_base_is_refused_with_a_suggestion() {
    let root = common::root().canonicalize().unwrap();
    let lane = format!(
        r#"import {}/nix/lanes/base/ray.nix {{ name = "ray-0731"; description = "d"; maxNumSeqs = 6;
             serve = {{ maxNumSeq = 6; maxCudagraphCaptureSize = 96; speculativeConfig.num_speculative_tokens = 7; }};
             budgets.startSec = 3; }}"#,
        root.display()
    );
    let value = evaluate(&root.join("nix/prebuilt"), &lane).unwrap();
    assert_eq!(value["serve"]["blockSize"], 256, "the base's own keys stay");
    let mut raw = common::raw().clone();
    raw.lanes.insert("ray-0731".into(), value);
    let (_, problems) = Catalog::read(&raw);
    let told: Vec<String> =
        problems.iter().filter(|p| any_refused(std::slice::from_ref(*p))).map(ToString::to_string).collect();
    for line in [
        "nix/lanes/ray-0731.nix: error: serve.maxNumSeq: unknown key (did you mean `maxNumSeqs`?)",
        "nix/lanes/ray-0731.nix: error: budgets.startSec: unknown key (did you mean `startSecs`? It is set too, here or by a base)",
    ] {
        assert!(told.iter().any(|l| l == line), "{line} is not in {told:#?}");
    }
    // The cluster that names the lane is not to blame.
    assert!(told.iter().all(|l| l.starts_with("nix/lanes/ray-0731.nix")), "{told:#?}");
}
