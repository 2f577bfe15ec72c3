//! What `nix flake check` proves. Each check answers with lines of what it proved, or fails with every breach.

use std::collections::BTreeMap;

use camino::{Utf8Path, Utf8PathBuf};
use serde_json::{Map, Value};
use sparklane_lane::catalog::{RawCatalog, any_refused};
use sparklane_lane::{Catalog, Generation, sha256_hex};

use crate::attrs::Attrs;
use crate::error::BuildError;
use crate::fs::{self, Entry};
use crate::{elf as elf_file, units as unit_rules};

type Proved = Result<Vec<String>, BuildError>;

/// Every lane, cluster, image and weights manifest can be read and keeps the rules.
pub(crate) fn schema(attrs: &Attrs) -> Proved {
    let raw: RawCatalog = attrs.read("catalog")?;
    let (catalog, problems) = Catalog::read(&raw);
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    if any_refused(&problems) {
        return Err(BuildError::Failed(lines));
    }
    let sound = catalog.lanes.keys().map(|name| format!("lane {name}"));
    let sound = sound.chain(catalog.clusters.keys().map(|name| format!("cluster {name}")));
    Ok(sound.chain(lines).collect())
}

/// Argument vector and environment of every generation are those of `tests/golden`.
pub(crate) fn golden(attrs: &Attrs) -> Proved {
    let folder = attrs.path("golden")?;
    let compare = |generation: &Generation, _: &Utf8Path| {
        let stem = format!("{}-{}", generation.lane, generation.role);
        let mut breaches = Vec::new();
        for (kind, ours) in
            [("argv", serde_json::json!(generation.engine.argv)), ("env", serde_json::json!(generation.engine.env))]
        {
            let file = folder.join(format!("{stem}.{kind}.json"));
            match fs::read_json::<Value>(&file) {
                Ok(golden) if golden == ours => {}
                Ok(golden) => breaches.push(format!("{stem}.{kind}.json: is {golden}, rendered {ours}")),
                Err(e) => breaches.push(e.to_string()),
            }
        }
        Ok(breaches)
    };
    each(attrs, compare)
}

/// Two builds of each generation are the same tree, link for link and byte for byte.
pub(crate) fn determinism(attrs: &Attrs) -> Proved {
    let again = attrs.paths("again")?;
    let mut breaches = Vec::new();
    let mut proved = Vec::new();
    for (name, first) in attrs.paths("generations")? {
        let Some(second) = again.get(&name) else {
            breaches.push(format!("{name}: was built only once"));
            continue;
        };
        if *second == first {
            breaches.push(format!("{name}: both builds are one store path"));
        }
        let (a, b) = (fingerprint(&first)?, fingerprint(second)?);
        let differing: Vec<_> = a.iter().filter(|(path, print)| b.get(*path) != Some(print)).map(|(p, _)| p).collect();
        breaches.extend(differing.iter().map(|path| format!("{name}: {path} differs")));
        breaches.extend(b.keys().filter(|path| !a.contains_key(*path)).map(|path| format!("{name}: {path} differs")));
        proved.push(format!("{name}: {} entries alike", a.len()));
    }
    verdict(proved, breaches)
}

/// Every program reachable from a closure is static and of the node's machine.
pub(crate) fn elf(attrs: &Attrs) -> Proved {
    each(attrs, |generation, root| {
        let mut breaches = Vec::new();
        let mut programs = 0;
        for (path, entry) in fs::tree(root)? {
            let at = root.join(&path);
            let bytes = fs::read(&at)?;
            let Some(machine) = elf_file::machine(&bytes) else {
                if entry == (Entry::File { executable: true }) {
                    breaches.push(format!("{path} is executable and no ELF file"));
                }
                continue;
            };
            programs += 1;
            if machine != generation.system.elf_machine() {
                breaches.push(format!("{path} is for ELF machine {machine}, the node is {}", generation.system));
            }
            if elf_file::wants_loader(&bytes) {
                breaches.push(format!("{path} is not static"));
            }
        }
        // bin/sparklane and its two names.
        if programs < 3 {
            breaches.push(format!("has {programs} programs, expected three"));
        }
        Ok(breaches)
    })
}

/// Managed files are those of generation.json, and units keep our rules.
pub(crate) fn units(attrs: &Attrs) -> Proved {
    each(attrs, |generation, root| {
        let mut breaches = Vec::new();
        for (path, file) in &generation.files {
            let bytes = fs::read(&root.join(path.trim_start_matches('/')))?;
            if sha256_hex(&bytes) != file.sha256 {
                breaches.push(format!("{path} is not what generation.json says"));
            }
            if file.kind == sparklane_lane::generation::FileKind::Unit {
                breaches.extend(unit_rules::breaches(path, &String::from_utf8_lossy(&bytes)));
            }
        }
        for (path, _) in fs::tree(root)? {
            if path.starts_with("etc") && !generation.files.contains_key(&format!("/{path}")) {
                breaches.push(format!("{path} is not in generation.json"));
            }
        }
        Ok(breaches)
    })
}

/// The `deploy` output holds exactly the keys of deploy-rs 1.0.0's schema that we mean, with sane values.
pub(crate) fn deploy_rs(attrs: &Attrs) -> Proved {
    let nodes: BTreeMap<String, Map<String, Value>> = attrs.read("nodes")?;
    let mut breaches = Vec::new();
    for (name, node) in &nodes {
        breaches.extend(deploy_node(node).into_iter().map(|what| format!("deploy.nodes.{name}{what}")));
    }
    verdict(nodes.keys().map(|name| format!("deploy.nodes.{name}")).collect(), breaches)
}

fn deploy_node(node: &Map<String, Value>) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut expect = |at: &str, good: bool, what: &str| {
        if !good {
            breaches.push(format!("{at}: {what}"));
        }
    };
    expect("", node.keys().all(|k| k == "hostname" || k == "profiles"), "has unknown keys");
    expect(".hostname", node.get("hostname").is_some_and(Value::is_string), "is no text");
    let profile = node.get("profiles").and_then(|p| p.get("sparklane")).and_then(Value::as_object);
    let Some(profile) = profile else {
        expect(".profiles.sparklane", false, "is missing");
        return breaches;
    };
    let text = |key: &str| profile.get(key).and_then(Value::as_str).unwrap_or_default();
    // deploy-rs reads its times as 16-bit numbers and dies on larger ones.
    let seconds = |key: &str| profile.get(key).and_then(Value::as_u64).is_some_and(|s| (1..=65_535).contains(&s));
    const KEYS: [&str; 10] = [
        "path",
        "user",
        "sshUser",
        "sshOpts",
        "profilePath",
        "tempPath",
        "activationTimeout",
        "confirmTimeout",
        "autoRollback",
        "magicRollback",
    ];
    let at = ".profiles.sparklane";
    expect(at, profile.keys().all(|k| KEYS.contains(&k.as_str())), "has unknown keys");
    expect(at, KEYS.iter().all(|k| profile.contains_key(*k)), "lacks keys");
    expect(at, text("user") == "root" && !text("sshUser").is_empty(), "user or sshUser is wrong");
    expect(at, text("profilePath") == "/nix/var/nix/profiles/sparklane", "profilePath is wrong");
    expect(at, text("tempPath") == "/run", "tempPath is not /run, which exists and only root can write");
    expect(at, seconds("activationTimeout") && seconds("confirmTimeout"), "a time is outside 1 to 65535");
    expect(
        at,
        ["autoRollback", "magicRollback"].iter().all(|k| profile.get(*k) == Some(&Value::Bool(true))),
        "rollback is off",
    );
    let path = Utf8Path::new(text("path"));
    for name in ["activate-rs", "deploy-rs-activate"] {
        expect(at, path.join(name).is_file(), &format!("path has no {name}"));
    }
    breaches
}

/// Runs a check over every generation; breaches carry its name.
fn each(attrs: &Attrs, check: impl Fn(&Generation, &Utf8Path) -> Result<Vec<String>, BuildError>) -> Proved {
    let mut breaches = Vec::new();
    let mut proved = Vec::new();
    for (name, root) in attrs.paths("generations")? {
        let generation: Generation = fs::read_json(&root.join("generation.json"))?;
        breaches.extend(check(&generation, &root)?.into_iter().map(|what| format!("{name}: {what}")));
        proved.push(name);
    }
    verdict(proved, breaches)
}

fn verdict(proved: Vec<String>, breaches: Vec<String>) -> Proved {
    if breaches.is_empty() { Ok(proved) } else { Err(BuildError::Failed(breaches)) }
}

/// What identifies each entry of a tree; a relative link by its text, a link into the store by its text too.
fn fingerprint(root: &Utf8Path) -> Result<BTreeMap<Utf8PathBuf, String>, BuildError> {
    let print = |(path, entry): (Utf8PathBuf, Entry)| {
        let print = match entry {
            Entry::Link { target } => format!("-> {target}"),
            Entry::File { executable } => {
                format!("{} {executable}", sha256_hex(&fs::read(&root.join(&path))?))
            }
        };
        Ok((path, print))
    };
    fs::tree(root)?.into_iter().map(print).collect()
}
