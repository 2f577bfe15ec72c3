//! The effects of a transaction on a real node. Each is idempotent and read back where it can be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use sparklane_lane::Generation;
use sparklane_lane::generation::{FileKind, GateKind, GateScope};
use sparklane_txn::plan::{Before, Direction, ENGINE_UNIT, Found, Inventory, Refresh, plan};
use sparklane_txn::spec::{Answer, Deadline, Fault, Side, Spec};
use sparklane_txn::{Boot, Clock as _, Node, Record, Step};

use crate::clock::BootClock;
use crate::closure;
use crate::error::HostError;
use crate::paths::HostPaths;
use crate::profile::Mover;
use crate::units::Units;
use crate::{decide, files, firewall, foreign, install, network, peer, process, profile, releases, txns, validate};

/// Waits for a generation's gates. The engine part implements it; tests script it.
pub trait Gates {
    /// Waits until the unit and every gate of the scope pass, or one fails for good.
    ///
    /// # Errors
    /// The gate and why; [`Fault::Interrupted`] when `interrupted` said so.
    fn wait(
        &mut self,
        generation: &Generation,
        scope: GateScope,
        interrupted: &dyn Fn() -> Option<String>,
        progress: &dyn Fn(String),
    ) -> Result<(), Fault>;
}

/// Lets an abort cut a wait short.
pub type Interrupt = Box<dyn Fn() -> Option<String>>;

/// A real node, with its exchangeable parts.
pub struct RealNode {
    paths: HostPaths,
    units: Box<dyn Units>,
    mover: Box<dyn Mover>,
    gates: Box<dyn Gates>,
    interrupted: Interrupt,
    progress: Sender<String>,
    /// The request; effects need its closures and folder.
    spec: Spec,
}

impl RealNode {
    /// A node that acts for one transaction.
    #[must_use]
    pub fn new(paths: HostPaths, parts: Parts, spec: Spec, interrupted: Interrupt, progress: Sender<String>) -> Self {
        Self { paths, units: parts.units, mover: parts.mover, gates: parts.gates, interrupted, progress, spec }
    }

    fn say(&self, text: impl Into<String>) {
        // Nobody has to listen; the journal is the record.
        let _heard = self.progress.send(text.into());
    }

    fn copies(&self) -> Utf8PathBuf {
        self.paths.txn(&self.spec.txn).join("before")
    }

    fn old(&self) -> Result<Option<Generation>, HostError> {
        self.spec.from.as_ref().map(|side| self.read(side)).transpose()
    }

    fn new_generation(&self) -> Result<Generation, HostError> {
        self.read(&self.spec.to)
    }

    fn read(&self, side: &Side) -> Result<Generation, HostError> {
        closure::generation(&self.paths.in_store(&side.path))
    }

    fn inventory(&self, old: Option<&Generation>, new: &Generation) -> Result<Inventory, HostError> {
        let paths: BTreeSet<&String> = old.into_iter().flat_map(|g| g.files.keys()).chain(new.files.keys()).collect();
        let copies = self.copies();
        files::make_dir(&copies)?;
        let mut found = BTreeMap::new();
        for (number, path) in paths.into_iter().enumerate() {
            let place = self.paths.managed(path);
            let looked = files::look(&place, number)?;
            if let Found::Known(Before::File { .. }) = &looked {
                let bytes = std::fs::read(&place).map_err(HostError::file("read", &place))?;
                files::write_atomic(&copies.join(number.to_string()), &bytes, 0o600)?;
            }
            found.insert(path.clone(), looked);
        }
        let flushed = old.and_then(|old| firewall::trouble(&self.paths, old)).is_some();
        let astray = flushed.then_some(Refresh::Firewall).into_iter().collect();
        Ok(Inventory { found, engine_active: self.units.status(ENGINE_UNIT)?.is_up(), astray })
    }

    /// Copies of managed files that someone edited, for the operator who chose to replace them.
    fn keep_edited(&self, old: Option<&Generation>, steps: &[Step]) -> Result<(), HostError> {
        for step in steps {
            let (Step::Place { path, before, .. } | Step::Remove { path, before }) = step else { continue };
            let Before::File { sha256, copy, .. } = before else { continue };
            let ours = old.and_then(|g| g.files.get(path));
            if ours.is_some_and(|file| file.sha256 != *sha256) {
                let bytes = std::fs::read(self.copies().join(copy.to_string()))
                    .map_err(HostError::file("read", self.copies()))?;
                let kept = self.paths.kept(&self.spec.txn).join(path.trim_start_matches('/'));
                files::write_atomic(&kept, &bytes, 0o600)?;
                self.say(format!("the edited {path} is kept as {kept}"));
            }
        }
        Ok(())
    }

    /// The engine's unit is up or starting; its start job may still be queued.
    fn on_its_way(&self) -> Result<(), String> {
        for _ in 0..50 {
            if self.units.status(ENGINE_UNIT).is_ok_and(|s| s.is_up()) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Err(format!("the old lane: {ENGINE_UNIT} does not start"))
    }

    /// The gates of the lane to go back to. There is nothing better to go to, so a unit that ends and that systemd starts
    /// again gets the lane's start budget (a port that is not free yet); what its answers show counts at once.
    fn old_gates(&mut self, old: &Generation, scope: GateScope) -> Result<(), Fault> {
        let until = Instant::now() + Duration::from_secs(old.budgets.start_secs.into());
        loop {
            let progress = self.progress.clone();
            let waited = self.gates.wait(old, scope, &|| None, &move |text| {
                let _heard = progress.send(text);
            });
            let again = scope == GateScope::Node && waited.is_err() && Instant::now() < until;
            if !again || !self.units.status(ENGINE_UNIT).is_ok_and(|s| s.is_up()) {
                return waited;
            }
            self.say("the old lane's engine ended, and systemd starts it again");
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    fn make_plan(&self, spec: &Spec) -> Result<Vec<Step>, HostError> {
        let current = profile::current(&self.paths)?;
        if current.as_ref().map(|s| &s.path) != spec.from.as_ref().map(|s| &s.path) {
            let at = current.map_or_else(|| "nothing".to_owned(), |s| s.path.to_string());
            return Err(HostError::Refused(format!("the node is at {at}, not where the plan was made; plan again")));
        }
        let (old, new) = (self.old()?, self.new_generation()?);
        let scratch = self.paths.txn(&spec.txn).join("scratch");
        let checked = validate::check(&self.paths, &self.paths.in_store(&spec.to.path), &new, &scratch);
        let _gone = std::fs::remove_dir_all(&scratch);
        checked?;
        let inventory = self.inventory(old.as_ref(), &new)?;
        let steps = plan(spec, old.as_ref(), &new, &inventory).map_err(|e| HostError::Refused(e.to_string()))?;
        self.keep_edited(old.as_ref(), &steps)?;
        Ok(steps)
    }

    fn refresh(&self, what: Refresh, boot: Boot) -> Result<(), HostError> {
        match what {
            Refresh::Units => self.units.reload(),
            Refresh::Network => self.apply_network(boot),
            Refresh::Sysctl => self.load_ours(FileKind::Sysctl, "sysctl", "--load"),
            Refresh::Tmpfiles => self.load_ours(FileKind::Tmpfiles, "systemd-tmpfiles", "--create"),
            Refresh::Firewall => firewall::follow(&self.paths),
        }
    }

    fn apply_network(&self, boot: Boot) -> Result<(), HostError> {
        process::run("netplan", &["generate"])?;
        // One that is starting cannot be spoken to yet.
        let runs = |unit| self.units.status(unit).map(|status| status.active == "active");
        let rendered = network::Rendered {
            profiles: network::names(network::PROFILES.into()),
            networkd: network::names(network::NETWORKD.into()),
            manager_runs: runs(network::MANAGER_UNIT)?,
            networkd_runs: runs(network::NETWORKD_UNIT)?,
            booting: boot != Boot::Same,
        };
        for network::Order { program, args, must } in network::orders(&self.rails()?, &rendered) {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            match process::run(program, &args) {
                Err(error) if must => return Err(error),
                Err(error) => self.say(error.to_string()),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// The interfaces of both sides' netplan files.
    fn rails(&self) -> Result<BTreeSet<String>, HostError> {
        let mut rails = BTreeSet::new();
        for side in self.spec.from.iter().chain([&self.spec.to]) {
            let generation = self.read(side)?;
            for path in generation.files.iter().filter(|(_, f)| f.kind == FileKind::Netplan).map(|(path, _)| path) {
                let content = self.paths.in_store(&side.path).join(path.trim_start_matches('/'));
                let text = std::fs::read_to_string(&content).map_err(HostError::file("read", &content))?;
                rails.extend(network::interfaces(&text));
            }
        }
        Ok(rails)
    }

    /// Loads what stands now at our paths of a kind. Everybody else's files may have faults of their own.
    fn load_ours(&self, kind: FileKind, program: &str, option: &str) -> Result<(), HostError> {
        let new = self.new_generation()?;
        let old = self.old()?;
        let all = old.iter().flat_map(|g| &g.files).chain(&new.files);
        let paths: BTreeSet<&String> = all.filter(|(_, file)| file.kind == kind).map(|(path, _)| path).collect();
        let there = paths.into_iter().filter(|path| self.paths.managed(path).exists());
        there.into_iter().try_for_each(|path| process::run(program, &[option, path]).map(drop))
    }

    fn do_step(&self, step: &Step) -> Result<(), HostError> {
        self.say(step.describe());
        match step {
            Step::StopUnit { unit, .. } => self.units.stop(unit, self.stop_secs()),
            Step::StartUnit { unit } => self.units.start(unit),
            Step::Place { path, file, .. } => {
                let content = self.paths.in_store(&self.spec.to.path).join(path.trim_start_matches('/'));
                let bytes = std::fs::read(&content).map_err(HostError::file("read", &content))?;
                files::write_atomic(&self.paths.managed(path), &bytes, file.mode)
            }
            Step::Remove { path, .. } => foreign::leave(&self.paths, path),
            Step::Refresh { what, direction: Direction::Forward } => self.refresh(*what, Boot::Same),
            Step::Refresh { .. } => Ok(()),
            Step::Profile { to, from } => profile::swap(&self.paths, &*self.mover, from.as_ref(), Some(to)),
        }
    }

    fn undo_step(&self, step: &Step, boot: Boot) -> Result<(), HostError> {
        self.say(format!("undo: {}", step.describe()));
        match step {
            Step::StopUnit { unit, was_active: true } => {
                // Killed before the stop it may run still, as a rank of a launch that the other nodes have left. In the
                // boot unit nothing runs yet.
                if boot == Boot::Same {
                    self.units.stop(unit, self.stop_secs())?;
                }
                self.units.start(unit)
            }
            Step::StopUnit { .. } => Ok(()),
            Step::StartUnit { unit } => self.units.stop(unit, self.stop_secs()),
            Step::Place { path, before, .. } | Step::Remove { path, before } => {
                files::restore(&self.paths.managed(path), before, &self.copies())
            }
            Step::Refresh { what: what @ (Refresh::Tmpfiles | Refresh::Sysctl), direction: Direction::Backward } => {
                // What is back may be a file that was never ours and never good; it is as it was all the same.
                self.refresh(*what, boot).unwrap_or_else(|error| self.say(format!("not applied: {error}")));
                Ok(())
            }
            Step::Refresh { what, direction: Direction::Backward } => self.refresh(*what, boot),
            Step::Refresh { .. } => Ok(()),
            Step::Profile { to, from } => profile::swap(&self.paths, &*self.mover, Some(to), from.as_ref()),
        }
    }

    /// Drain, then the kill that docker and systemd add (engine-real.md section 4: drain + 15 s), then some.
    fn stop_secs(&self) -> u64 {
        let secs = |g: Generation| u64::from(g.engine.stop_secs);
        let old = self.old().ok().flatten().map_or(0, secs);
        let new = self.new_generation().map_or(0, secs);
        old.max(new) + 45
    }

    fn check_old(&self, spec: &Spec, steps: &[Step]) -> Vec<String> {
        let mut wrong = Vec::new();
        match profile::current_path(&self.paths) {
            Ok(at) if at.as_ref() == spec.from.as_ref().map(|s| &s.path) => {}
            Ok(at) => wrong.push(format!("profile: points to {}", at.map_or("nothing".into(), |p| p.to_string()))),
            Err(error) => wrong.push(error.to_string()),
        }
        for step in steps {
            let (Step::Place { path, before, .. } | Step::Remove { path, before }) = step else { continue };
            match files::is_as_before(&self.paths.managed(path), before) {
                Ok(true) => {}
                Ok(false) => wrong.push(format!("{path}: is not as it was")),
                Err(error) => wrong.push(error.to_string()),
            }
        }
        wrong
    }

    fn keep_commit(&self, spec: &Spec, steps: &[Step]) -> Result<(), HostError> {
        let (old, new) = (self.old()?, self.new_generation()?);
        if let Some(release) = &spec.release {
            releases::add(&self.paths, release, &spec.to.path, new.keep_releases)?;
        }
        for step in steps {
            match step {
                Step::Place { path, before, .. } if old.as_ref().is_none_or(|g| !g.files.contains_key(path)) => {
                    foreign::keep(&self.paths, path, before, &self.copies())?;
                }
                Step::Remove { path, .. } => foreign::forget(&self.paths, path)?,
                _ => {}
            }
        }
        install::tool(&self.paths, &self.paths.in_store(&spec.to.path))
    }

    fn tidy(&self, spec: &Spec, outcome: &Record) -> Result<(), HostError> {
        let dir = self.paths.txn(&spec.txn);
        if let Record::Committed { .. } = outcome {
            let steps = crate::journal::read(&dir.join("journal"))?.records.into_iter().find_map(|r| match r {
                Record::Prepared { plan, .. } => Some(plan),
                _ => None,
            });
            // The copies are gone once this was done before; doing it again would find nothing to keep.
            if self.copies().exists() || steps.as_ref().is_none_or(Vec::is_empty) {
                self.keep_commit(spec, &steps.unwrap_or_default())?;
            }
        }
        if let Record::Stuck { .. } = outcome {
            return Ok(());
        }
        if matches!(outcome, Record::RolledBack { .. }) && spec.from.is_none() {
            install::uninstall(&self.paths, &*self.units)?;
        }
        let _gone = std::fs::remove_dir_all(self.copies());
        files::remove(&install::txn_root(&self.paths, &spec.txn))?;
        txns::forget_old(&self.paths)
    }
}

/// The exchangeable parts of a node.
pub struct Parts {
    /// systemd.
    pub units: Box<dyn Units>,
    /// What moves the profile.
    pub mover: Box<dyn Mover>,
    /// What waits for gates.
    pub gates: Box<dyn Gates>,
}

impl Node for RealNode {
    fn plan(&mut self, spec: &Spec) -> Result<Vec<Step>, Fault> {
        Ok(self.make_plan(spec)?)
    }

    fn apply(&mut self, step: &Step) -> Result<(), Fault> {
        self.do_step(step).map_err(|error| Fault::failed(format!("{}: {error}", step.describe())))
    }

    fn undo(&mut self, step: &Step, boot: Boot) -> Result<(), Fault> {
        // In the boot unit a start is queued behind it like everywhere else: starts never wait here.
        Ok(self.undo_step(step, boot)?)
    }

    fn read_back(&mut self, spec: &Spec, steps: &[Step], boot: Boot) -> Result<(), Vec<String>> {
        let mut wrong = self.check_old(spec, steps);
        let restarted = steps.iter().any(|s| matches!(s, Step::StopUnit { was_active: true, .. }));
        if wrong.is_empty()
            && restarted
            && boot == Boot::Same
            && let Ok(Some(mut old)) = self.old()
        {
            // What a machine finds around it (a stranger's listener, a cable) no transaction has changed: that it is as it
            // was when the old lane passed is nothing that a way back could prove.
            old.gates.retain(|gate| !matches!(gate.kind, GateKind::Fabric { .. }));
            // A head driven alone (stock deploy-rs) cannot serve while its worker is at another generation; the client
            // brings that back only after us. That the old unit is on its way is all that can be proved.
            if spec.role.decides() && spec.release.is_none() {
                return self.on_its_way().map_err(|why| vec![why]);
            }
            self.say("waiting for the old lane's gates");
            let scopes: &[GateScope] =
                if spec.role.decides() { &[GateScope::Node, GateScope::Cluster] } else { &[GateScope::Node] };
            for scope in scopes {
                if let Err(fault) = self.old_gates(&old, *scope) {
                    wrong.push(format!("the old lane: {fault}"));
                    break;
                }
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    fn gates(&mut self, _spec: &Spec, scope: GateScope, deadline: Option<&Deadline>) -> Result<(), Fault> {
        let new = self.new_generation()?;
        let progress = self.progress.clone();
        let clock = BootClock::new();
        let late = || deadline.is_some_and(|d| d.passed(&clock.now())).then(|| "the deadline passed".to_owned());
        let interrupted = || (self.interrupted)().or_else(late);
        self.gates.wait(&new, scope, &interrupted, &move |text| {
            let _heard = progress.send(text);
        })
    }

    fn stop_lane(&mut self) -> Result<(), Fault> {
        Ok(self.units.stop(ENGINE_UNIT, self.stop_secs())?)
    }

    fn start_lane(&mut self) -> Result<(), Fault> {
        Ok(self.units.start(ENGINE_UNIT)?)
    }

    fn ask_head(&mut self, spec: &Spec) -> Answer {
        match peer::ask(&self.paths, &spec.txn) {
            unreachable @ Answer::Unreachable { .. } => {
                decide::word(&self.paths, &spec.txn).map_or(unreachable, Answer::from)
            }
            answer => answer,
        }
    }

    fn settle(&mut self, spec: &Spec, outcome: &Record) -> Result<(), Fault> {
        Ok(self.tidy(spec, outcome)?)
    }
}
