//! Getting to the nodes: host keys, logins, sudo, and what each machine says of itself.

use std::collections::BTreeMap;

use sparklane_deploy::ssh::{self, Remote};
use sparklane_init::hostkey::{self, fingerprint};
use sparklane_init::plan::plan;
use sparklane_init::remote::{Entered, enter, may_sudo, other_key, survey};
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
    hosts_of_fingerprints(&args.host_key, &wishes.nodes)?;
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
        let known = recorded(wishes, wanted);
        if !known.is_empty() {
            remote.believe_only(known)?;
        }
        remotes.push(remote);
    }
    let systems = systems(args, wishes, &mut remotes, manner)?;
    let surveys = each(&remotes, |n, remote| {
        may_sudo(remote)?;
        let system = systems.get(n).copied().ok_or_else(|| InitError::Refused(format!("{}: no login", remote.name)))?;
        let mut survey = survey(remote, &tool::program(system, &args.tool)?)?;
        let shown = remote.meet()?;
        // A fingerprint that the operator named counts for a node that is known already, too.
        as_named(args, remote, &shown)?;
        survey.machine.host_keys = hostkey::recordable(&survey.machine.host_keys, &shown);
        Ok(survey)
    })?;
    let named = wishes.nodes.iter().map(|w| w.name.clone()).zip(remotes).collect();
    Ok(Reached { remotes: named, surveys })
}

/// The first login to each node, after its host key was agreed to.
fn systems(args: &Args, wishes: &Wishes, remotes: &mut [Remote], manner: Manner) -> Result<Vec<System>, InitError> {
    let entered = each(remotes, |n, remote| {
        let (entered, wanted) = (enter(remote)?, wishes.nodes.get(n));
        // ssh calls a key of a kind that is not recorded a new one: where keys are recorded it is another one, too.
        let recorded = wanted.is_some_and(|wanted| !recorded(wishes, wanted).is_empty());
        if matches!(entered, Entered::In(_)) || (entered == Entered::Stranger && !recorded) {
            return Ok(entered);
        }
        let shown = remote.meet().unwrap_or_default();
        Err(wanted.and_then(|wanted| swapped(wishes, wanted, &shown)).unwrap_or_else(|| other_key(remote)))
    })?;
    let nodes = wishes.nodes.iter();
    for ((remote, wanted), _) in remotes.iter_mut().zip(nodes).zip(&entered).filter(|(_, e)| **e == Entered::Stranger) {
        let keys = remote.meet()?;
        if let Some(error) = swapped(wishes, wanted, &keys) {
            return Err(error);
        }
        believe(args, remote, &keys, manner)?;
        remote.believe_only(&keys)?;
    }
    each(remotes, |n, remote| match entered.get(n) {
        Some(Entered::In(system)) => Ok(*system),
        _ => enter(remote)?.system(remote),
    })
}

/// The host keys that the file that is there records for a node.
fn recorded<'a>(wishes: &'a Wishes, wanted: &Wanted) -> &'a [String] {
    let node = wishes.existing.as_ref().and_then(|cluster| cluster.nodes.get(&wanted.name));
    node.map_or(&[], |node| &node.host_keys)
}

/// The key of another node of the file that is there.
fn swapped(wishes: &Wishes, wanted: &Wanted, shown: &[String]) -> Option<InitError> {
    let why = hostkey::swapped(&wanted.name, &wanted.host, shown, wishes.existing.as_ref()?)?;
    Some(InitError::Refused(format!("{}: {why}", wanted.name)))
}

/// Whether a host key that nobody knows is the node's.
fn believe(args: &Args, remote: &Remote, keys: &[String], manner: Manner) -> Result<(), InitError> {
    let prints: Vec<String> = keys.iter().filter_map(|key| fingerprint(key)).collect();
    let shown = prints.join(" ");
    let host = &remote.host;
    if as_named(args, remote, keys)? {
        return Ok(());
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

/// Holds the keys that a node shows against the fingerprints that the operator named for it; false when he named none.
fn as_named(args: &Args, remote: &Remote, shown: &[String]) -> Result<bool, InitError> {
    let ours = args.host_key.iter().filter(|(named, _)| *named == remote.host || *named == remote.name);
    let wanted: Vec<&str> = ours.map(|(_, print)| print.as_str()).collect();
    if wanted.is_empty() {
        return Ok(false);
    }
    match hostkey::unlike(shown, &wanted) {
        Some(why) => Err(InitError::Refused(format!("{}: {why}", remote.name))),
        None => Ok(true),
    }
}

/// A fingerprint of a host that is none of the nodes would be compared with nothing.
fn hosts_of_fingerprints(named: &[(String, String)], nodes: &[Wanted]) -> Result<(), InitError> {
    let is_node = |named: &str| nodes.iter().any(|node| node.host == named || node.name.as_str() == named);
    match named.iter().find(|(named, _)| !is_node(named)) {
        None => Ok(()),
        Some((named, _)) => {
            let hosts: Vec<&str> = nodes.iter().map(|node| node.host.as_str()).collect();
            Err(InitError::Usage(format!(
                "--host-key {named}=…: {named} is no node here; they are {}",
                hosts.join(", ")
            )))
        }
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
    let surveys = each(&ordered, |_, remote| {
        let system = enter(remote)?.system(remote)?;
        survey(remote, &tool::program(system, &args.tool)?)
    })?;
    let machines: Vec<(&Wanted, _)> = wishes.nodes.iter().zip(surveys.iter().map(|s| &s.machine)).collect();
    let rest = plan(&machines, &wishes.user, wishes.trusted_key.as_deref());
    let steps = rest.steps.iter().map(|step| format!("{}: {}", step.node, step.action.says()));
    Ok(steps.chain(rest.findings.iter().map(|f| f.what.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sparklane_lane::Role;

    #[test]
    fn a_fingerprint_of_no_node_is_not_passed_over() {
        let nodes = [Wanted { name: "head".parse().unwrap(), role: Role::Head, rank: 0, host: "10.0.0.1".into() }];
        let named = |host: &str| hosts_of_fingerprints(&[(host.to_owned(), "SHA256:x".to_owned())], &nodes);
        assert!(named("head").is_ok() && named("10.0.0.1").is_ok());
        let error = named("10.0.0.2").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert_eq!(error.to_string(), "--host-key 10.0.0.2=…: 10.0.0.2 is no node here; they are 10.0.0.1");
    }
}
