//! Every line of the `lab` blocks in docs/operations.md, docs/fabric.md and docs/init.md, typed as a reader would, on a fresh lab.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test says what went wrong by panicking

use camino::Utf8Path;
use sparklane_lab::{Lab, Paths, UpOptions};

fn lines(text: &str) -> Vec<&str> {
    let mut inside = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        match line.trim() {
            "```lab" => inside = true,
            "```" => inside = false,
            line if inside && !line.is_empty() => lines.push(line),
            _ => {}
        }
    }
    lines
}

#[test]
#[ignore = "needs the lab"]
fn every_example_of_the_pages_works_in_its_order() {
    let workspace = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize_utf8().unwrap();
    let page = |name: &str| std::fs::read_to_string(workspace.join("docs").join(name)).unwrap();
    let (operations, fabric) = (page("operations.md"), page("fabric.md"));
    let mut examples = lines(&operations);
    assert!(examples.len() >= 11, "the page lost its examples: {examples:?}");
    let more = lines(&fabric);
    assert!(more.len() >= 3, "the page lost its examples: {more:?}");
    examples.extend(more);
    let init = page("init.md");
    let more = lines(&init);
    assert_eq!(more.len(), 1, "the page lost its example: {more:?}");
    examples.extend(more);
    let paths = Paths::from_env();
    Lab::down(&paths).unwrap();
    let options =
        UpOptions { prebuilt: Some(workspace.join("prebuilt")), flake: Some(workspace), state_size_mib: None };
    let lab = Lab::up(paths, &options, &|text| eprintln!("{text}")).unwrap();
    // README's first step on real Sparks, with nothing overridden.
    let own =
        "cd $(mktemp -d) && nix flake init -t path:/root/sparklane && grep -q mkCluster flake.nix && ls cluster.nix";
    let output = lab.exec("control", &["bash", "-lc", own]).unwrap();
    assert_eq!(output.code, Some(0), "{}\n{}", output.stdout, output.stderr);
    for example in examples {
        // As the page says: on the lab's control machine the program comes from /root/prebuilt, not from nixpkgs.
        let example = example.replacen("nix run", "nix run --override-input prebuilt path:/root/prebuilt", 1);
        let typed = ["bash", "-lc", &format!("cd /root/sparklane && {example}")];
        let output = lab.exec("control", &typed).unwrap();
        assert_eq!(output.code, Some(0), "{example}\n{}\n{}", output.stdout, output.stderr);
    }
}
