//! Getting to the nodes: host keys, logins, sudo, and what each machine says of itself.

use std::collections::BTreeMap;

use sparklane_deploy::ssh::{self, Remote};
use sparklane_init::hostkey::fingerprint;
use sparklane_init::plan::plan;
use sparklane_init::remote::{Entered, enter, may_sudo, survey};
use sparklane_init::{InitError, Survey, Wanted, Wishes};
use sparklane_lane::{NodeName, System};

use super::ask::{Manner, line};
use super::{Args, tool};

/// All nodes, looked at.
pub struct Reached {
    /// How each is reached.
    pub remotes: BTreeMap<NodeName, Remote>,
    /// What each says, in the order of the wishes.
    pub surveys: Vec<Survey>,
}

/// Logs in to every node and asks it, all at once; what keeps any of them from answering is told of all of them.
///
/// # Errors
/// Refused; nothing was changed.
pub fn all(args: &Args, wishes: &Wishes, manner: Manner, control: &tempfile::TempDir) -> Result<Reached, InitError> {
    let dir = ssh::utf8(control)?;
    let mut remotes = Vec::new();
    for wanted in &wishes.nodes {
        let mut remote = Remote {
            name: wanted.name.to_string(),
            user: wishes.user.clone(),
            host: wanted.host.clone(),
            opts: wishes.ssh_opts.clone(),
            control: dir.clone(),
        };
        let known = wishes.existing.as_ref().and_then(|c| c.nodes.get(&wanted.name)).map(|node| &node.host_keys);
        if let Some(keys) = known.filter(|keys| !keys.is_empty()) {
            remote.believe_only(keys)?;
        }
        remotes.push(remote);
    }
    let systems = systems(args, &mut remotes, manner)?;
    let surveys = each(&remotes, |n, remote| {
        may_sudo(remote)?;
        let system = systems.get(n).copied().ok_or_else(|| InitError::Refused(format!("{}: no login", remote.name)))?;
        let mut survey = survey(remote, &tool::program(system, &args.tool)?)?;
        // sshd may have others than those in the usual place: a cluster file with these would lock everybody out.
        let shown = remote.meet()?;
        named_one(args, remote, &shown)?;
        if !survey.machine.host_keys.iter().any(|key| shown.contains(key)) {
            survey.machine.host_keys.clear();
        }
        Ok(survey)
    })?;
    let named = wishes.nodes.iter().map(|w| w.name.clone()).zip(remotes).collect();
    Ok(Reached { remotes: named, surveys })
}

/// The first login to each node, after its host key was agreed to.
fn systems(args: &Args, remotes: &mut [Remote], manner: Manner) -> Result<Vec<System>, InitError> {
    let entered = each(remotes, |_, remote| enter(remote))?;
    let strangers: Vec<bool> = entered.iter().map(|e| *e == Entered::Stranger).collect();
    for (remote, _) in remotes.iter_mut().zip(&strangers).filter(|(_, stranger)| **stranger) {
        let keys = remote.meet()?;
        believe(args, remote, &keys, manner)?;
        remote.believe_only(&keys)?;
    }
    let again = each(remotes, |n, remote| match entered.get(n) {
        Some(Entered::In(system)) => Ok(*system),
        _ => match enter(remote)? {
            Entered::In(system) => Ok(system),
            Entered::Stranger => Err(InitError::Refused(format!("{}: shows another host key each time", remote.name))),
        },
    })?;
    Ok(again)
}

/// Whether a host key that nobody knows is the node's.
fn believe(args: &Args, remote: &Remote, keys: &[String], manner: Manner) -> Result<(), InitError> {
    let prints: Vec<String> = keys.iter().filter_map(|key| fingerprint(key)).collect();
    let shown = prints.join(" ");
    let host = &remote.host;
    if let Some((_, wanted)) = args.host_key.iter().find(|(named, _)| named == host || *named == remote.name) {
        if prints.iter().any(|print| print == wanted) {
            return Ok(());
        }
        let why = format!("{}: its host key is {shown}, not {wanted}: somebody may be between you", remote.name);
        return Err(InitError::Refused(why));
    }
    if args.accept_host_keys {
        eprintln!("{:<8} host key {shown}, believed as --accept-host-keys says", remote.name);
        return Ok(());
    }
    let compare = "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub";
    if manner == Manner::Terminal {
        let question = format!(
            "{}: {host} shows a host key that is not known: {shown}\nOn its console `{compare}` prints the right one. Is it this? [y/N]",
            remote.name
        );
        if matches!(line(&question).as_str(), "y" | "yes") {
            return Ok(());
        }
    }
    Err(InitError::Refused(format!(
        "{}: its host key is not known here. It shows {shown}; when `{compare}` on its console prints the same: \
         --host-key {host}={}; or, without comparing, --accept-host-keys",
        remote.name,
        prints.first().map_or("", String::as_str)
    )))
}

/// A fingerprint that the operator named counts for a node that is known already, too.
fn named_one(args: &Args, remote: &Remote, shown: &[String]) -> Result<(), InitError> {
    let named = args.host_key.iter().find(|(host, _)| *host == remote.host || *host == remote.name);
    let prints: Vec<String> = shown.iter().filter_map(|key| fingerprint(key)).collect();
    match named {
        Some((_, wanted)) if !prints.contains(wanted) => {
            Err(InitError::Refused(format!("{}: its host key is {}, not {wanted}", remote.name, prints.join(" "))))
        }
        _ => Ok(()),
    }
}

/// Asks all nodes at once; all that fail are told.
fn each<T: Send>(
    remotes: &[Remote],
    ask: impl Fn(usize, &Remote) -> Result<T, InitError> + Sync,
) -> Result<Vec<T>, InitError> {
    let answers: Vec<Result<T, InitError>> = std::thread::scope(|scope| {
        let one = |(n, remote)| {
            let ask = &ask;
            scope.spawn(move || ask(n, remote))
        };
        let threads: Vec<_> = remotes.iter().enumerate().map(one).collect();
        let died = || Err(InitError::Refused("a thread died".into()));
        threads.into_iter().map(|t| t.join().unwrap_or_else(|_| died())).collect()
    });
    let usage = answers.iter().any(|a| matches!(a, Err(InitError::Usage(_))));
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for answer in answers {
        match answer {
            Ok(answer) => good.push(answer),
            Err(error) => bad.push(error.to_string()),
        }
    }
    bad.dedup();
    match bad.is_empty() {
        true => Ok(good),
        false if usage => Err(InitError::Usage(bad.join("\n"))),
        false => Err(InitError::Refused(bad.join("\n"))),
    }
}

/// What is left to do on the nodes, by what they say now.
///
/// # Errors
/// When a node does not answer any more.
pub fn left(args: &Args, wishes: &Wishes, remotes: &BTreeMap<NodeName, Remote>) -> Result<Vec<String>, InitError> {
    let ordered: Vec<Remote> = wishes.nodes.iter().filter_map(|w| remotes.get(&w.name).cloned()).collect();
    let surveys = each(&ordered, |_, remote| match enter(remote)? {
        Entered::In(system) => survey(remote, &tool::program(system, &args.tool)?),
        Entered::Stranger => Err(InitError::Refused(format!("{}: its host key is not known any more", remote.name))),
    })?;
    let machines: Vec<(&Wanted, _)> = wishes.nodes.iter().zip(surveys.iter().map(|s| &s.machine)).collect();
    let rest = plan(&machines, &wishes.user, wishes.trusted_key.as_deref());
    let steps = rest.steps.iter().map(|step| format!("{}: {}", step.node, step.action.says()));
    Ok(steps.chain(rest.findings.iter().map(|f| f.what.clone())).collect())
}
