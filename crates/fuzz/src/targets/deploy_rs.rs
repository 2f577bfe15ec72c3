//! The command line of deploy-rs' `activate-rs`, a word a line.

use sparklane_txn::Goal;
use sparklane_txn::deploy_rs::{Call, Profile, parse};

/// One input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let args: Vec<String> = text.split('\n').map(str::to_owned).collect();
    match parse(&args) {
        Ok(Call::Activate(activate)) => {
            let own = "/nix/var/nix/profiles/per-user/root/sparklane";
            let refused = activate.refusal(own, Some((0, 0o755)));
            assert!(refused.is_some() || activate.profile == Profile::Path(own.to_owned()));
            let confirm = activate.confirm();
            assert_eq!(confirm.closure, activate.closure);
            assert!(confirm.window_secs.is_none() || activate.magic_rollback && activate.goal != Goal::DryActivate);
        }
        Ok(Call::Wait(wait)) => assert!(wait.closure.as_str().starts_with("/nix/store/")),
        Ok(Call::Revoke { .. }) => {}
        Err(usage) => assert!(!usage.to_string().is_empty()),
    }
}
