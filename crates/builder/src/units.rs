//! Rules for unit files that we write (`systemd-analyze verify` runs in the lab).

/// Breaches of the rules in a unit file.
pub(crate) fn breaches(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut section = "";
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            section = name;
        } else if section.is_empty() {
            found.push(format!("{path}: {line:?} is in no section"));
        } else {
            match line.split_once('=') {
                Some((key, value)) => found.extend(directive(path, key, value)),
                None => found.push(format!("{path}: {line:?} is no directive")),
            }
        }
    }
    if path.ends_with("sparklane-engine.service") {
        found.extend(engine(path, text));
    }
    found
}

/// Programs are absolute, fixed across generations, and never a shell.
fn directive(path: &str, key: &str, value: &str) -> Option<String> {
    if value.contains("/nix/store/") {
        return Some(format!("{path}: {key} names a store path; use the profile"));
    }
    if !key.starts_with("Exec") {
        return None;
    }
    let program = value.trim_start_matches(['-', '+', '!', ':', '@']).split(' ').next().unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default();
    if !program.starts_with('/') {
        Some(format!("{path}: {key} runs {program:?}, which is no absolute path"))
    } else if matches!(name, "sh" | "bash" | "dash" | "env") {
        Some(format!("{path}: {key} runs a shell"))
    } else {
        None
    }
}

/// What the transaction and the supervisor rely on.
fn engine(path: &str, text: &str) -> Vec<String> {
    const REQUIRED: [&str; 12] = [
        "Type=notify",
        "Restart=on-failure",
        "RestartPreventExitStatus=78 79",
        "Requires=sparklane-resolve.service",
        "ExecStart=/nix/var/nix/profiles/sparklane/bin/sparklane engine run",
        "TimeoutStartSec=",
        "TimeoutStopSec=",
        "CapabilityBoundingSet=",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "SystemCallFilter=",
        "RequiresMountsFor=/nix /var/lib/sparklane",
    ];
    let missing = REQUIRED.iter().filter(|wanted| !text.lines().any(|line| line.starts_with(**wanted)));
    missing.map(|wanted| format!("{path}: {wanted} is missing")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_and_store_paths_are_refused() {
        let unit =
            "a=b\n[Service]\nExecStart=-/bin/sh -c x\nExecStop=docker stop\nEnvironment=X=/nix/store/y\nnonsense\n";
        let found = breaches("x.service", unit);
        assert_eq!(found.len(), 5, "{found:?}");
        assert!(breaches("x.service", "[Service]\n# a comment\nExecStart=/usr/bin/true\n").is_empty());
    }

    #[test]
    fn the_engine_unit_keeps_its_promises() {
        let found = breaches("/etc/systemd/system/sparklane-engine.service", "[Service]\nType=simple\n");
        assert!(found.iter().any(|l| l.contains("Type=notify")));
    }
}
