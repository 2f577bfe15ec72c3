//! The protocol: single rules, and whole clusters under crashes, cuts and lost beats.

use std::collections::BTreeMap;

use super::*;
use crate::pair::beat::RunId;
use crate::pair::beat::tests::beat;

const GRACE: Duration = Duration::from_secs(10);

fn heard(role: Role, ago: u64, change: impl FnOnce(&mut Beat)) -> Heard {
    let mut beat = beat(if role.decides() { "head" } else { "worker" });
    change(&mut beat);
    Heard { node: beat.node.clone(), role, last: Some((beat, Duration::from_secs(ago))) }
}

fn own(attempt: Option<AttemptId>, rank: Rank) -> Own {
    Own { serves: "s".into(), attempt, rank, spent: None }
}

fn waits_for(advice: &Advice, words: &str) -> bool {
    matches!(advice, Advice::Wait(why) if why.contains(words))
}

#[test]
fn a_head_waits_for_every_worker_and_says_for_what() {
    let a = AttemptId::random().unwrap();
    let me = own(Some(a), Rank::Waiting);
    let nobody = Heard { node: "worker".parse().unwrap(), role: Role::Worker, last: None };
    assert!(waits_for(&head(&me, &[nobody], GRACE), "no word from worker yet"));
    let joined = heard(Role::Worker, 0, |b| (b.says.attempt, b.says.rank) = (Some(a), Rank::Running));
    assert_eq!(head(&me, std::slice::from_ref(&joined), GRACE), Advice::Start(a));
    let idle = heard(Role::Worker, 0, |_| ());
    assert!(waits_for(&head(&me, &[joined, idle], GRACE), "has not joined"));
    let other = heard(Role::Worker, 0, |b| b.serves = "t".into());
    assert!(waits_for(&head(&me, &[other], GRACE), "another release"));
    let why = heard(Role::Worker, 0, |b| b.says.reason = Some("no image".into()));
    assert!(waits_for(&head(&me, &[why], GRACE), "no image"));
    let silent = heard(Role::Worker, 9, |b| (b.says.attempt, b.says.rank) = (Some(a), Rank::Running));
    assert!(waits_for(&head(&me, &[silent], GRACE), "for 9 s"));
}

#[test]
fn a_head_leaves_when_a_rank_is_gone() {
    let a = AttemptId::random().unwrap();
    let me = own(Some(a), Rank::Running);
    let at = |ago, rank, attempt| {
        head(&me, &[heard(Role::Worker, ago, |b| (b.says.attempt, b.says.rank) = (attempt, rank))], GRACE)
    };
    assert_eq!(at(0, Rank::Running, Some(a)), Advice::Stay);
    assert!(matches!(at(0, Rank::Ended, Some(a)), Advice::Leave(_)));
    assert!(matches!(at(0, Rank::Waiting, None), Advice::Leave(_)), "a supervisor that began anew lost its rank");
    assert!(matches!(at(5, Rank::Running, Some(a)), Advice::Doubt(_)));
    assert!(matches!(at(11, Rank::Running, Some(a)), Advice::Leave(_)));
}

#[test]
fn a_worker_joins_an_attempt_once_and_only_before_the_heads_rank_runs() {
    let (a, b) = (AttemptId::random().unwrap(), AttemptId::random().unwrap());
    let at = |own: &Own, attempt, rank| {
        worker(
            own,
            Some(&heard(Role::Head, 0, |beat| (beat.says.attempt, beat.says.rank) = (Some(attempt), rank))),
            GRACE,
        )
    };
    let me = own(None, Rank::Waiting);
    assert_eq!(at(&me, a, Rank::Waiting), Advice::Start(a));
    assert!(matches!(at(&me, a, Rank::Running), Advice::Wait(_)));
    let me = Own { spent: Some(a), ..me };
    assert!(matches!(at(&me, a, Rank::Waiting), Advice::Wait(_)));
    assert_eq!(at(&me, b, Rank::Waiting), Advice::Start(b));
    let me = own(Some(a), Rank::Running);
    assert_eq!(at(&me, a, Rank::Running), Advice::Stay);
    assert!(matches!(at(&me, a, Rank::Ended), Advice::Leave(_)));
    assert!(matches!(at(&me, b, Rank::Waiting), Advice::Leave(_)));
    assert!(matches!(worker(&me, None, GRACE), Advice::Wait(_)));
}

/// A supervisor of the model: what `run` does, without containers. Times are seconds.
struct Node {
    role: Role,
    run: RunId,
    own: Own,
    ears: BTreeMap<usize, (Beat, u64)>,
    /// Back at this second; 0 while it is up.
    down_until: u64,
    rank_dies: bool,
}

impl Node {
    fn new(role: Role) -> Self {
        let attempt = role.decides().then(|| AttemptId::random().unwrap());
        Self {
            role,
            run: RunId::random().unwrap(),
            own: own(attempt, Rank::Waiting),
            ears: BTreeMap::new(),
            down_until: 0,
            rank_dies: false,
        }
    }

    /// Ends the supervisor; systemd or the power starts it again later.
    fn end(&mut self, at: u64) {
        *self = Self { down_until: at, ..Self::new(self.role) };
    }

    fn beat(&self, n: usize) -> Beat {
        let mut beat = beat(&format!("n{n}"));
        beat.run = self.run;
        (beat.says.attempt, beat.says.rank, beat.says.spent) = (self.own.attempt, self.own.rank, self.own.spent);
        beat
    }

    fn step(&mut self, now: u64, roles: &[Role]) {
        if std::mem::take(&mut self.rank_dies) && self.own.rank == Rank::Running {
            return self.end(now + 1);
        }
        let hear = |n: usize| Heard {
            node: format!("n{n}").parse().unwrap(),
            role: roles[n],
            last: self.ears.get(&n).map(|(beat, at)| (beat.clone(), Duration::from_secs(now - at))),
        };
        let others: Vec<Heard> = (0..roles.len()).filter(|n| self.own_number(*n, roles)).map(hear).collect();
        let advice = if self.role.decides() {
            head(&self.own, &others, GRACE)
        } else {
            worker(&self.own, others.iter().find(|h| h.role.decides()), GRACE)
        };
        match advice {
            Advice::Start(attempt) => (self.own.attempt, self.own.rank) = (Some(attempt), Rank::Running),
            Advice::Leave(_) if self.role.decides() => self.end(now + 1),
            Advice::Leave(_) => {
                self.own.spent = self.own.attempt.take().or(self.own.spent);
                self.own.rank = Rank::Waiting;
            }
            _ => {}
        }
    }

    /// In the model a node hears all others: its own beats never reach it.
    fn own_number(&self, n: usize, roles: &[Role]) -> bool {
        if self.role.decides() { !roles[n].decides() } else { roles[n].decides() }
    }
}

/// What goes wrong in a second.
#[derive(Debug, Clone, Copy)]
enum Trouble {
    None,
    RankDies(usize),
    SupervisorDies(usize),
    PowerCut(usize),
    /// Nobody hears anybody for so many seconds.
    RailsCut(u64),
}

fn trouble(nodes: usize) -> impl proptest::strategy::Strategy<Value = Trouble> {
    use proptest::prelude::*;
    prop_oneof![
        12 => Just(Trouble::None),
        1 => (0..nodes).prop_map(Trouble::RankDies),
        1 => (0..nodes).prop_map(Trouble::SupervisorDies),
        1 => (0..nodes).prop_map(Trouble::PowerCut),
        1 => (1_u64..20).prop_map(Trouble::RailsCut),
    ]
}

fn play(nodes: &mut [Node], roles: &[Role], troubles: &[Trouble], lost: &[bool]) {
    let mut cut_until = 0;
    // After the troubles, time enough for a cut, a reboot and the grace.
    for second in 0..troubles.len() as u64 + 60 {
        match troubles.get(usize::try_from(second).unwrap()).copied().unwrap_or(Trouble::None) {
            Trouble::None => {}
            Trouble::RankDies(n) => nodes[n].rank_dies = true,
            Trouble::SupervisorDies(n) => nodes[n].end(second + 1),
            Trouble::PowerCut(n) => nodes[n].end(second + 15),
            Trouble::RailsCut(secs) => cut_until = second + secs,
        }
        let up: Vec<usize> = (0..nodes.len()).filter(|n| nodes[*n].down_until <= second).collect();
        for from in &up {
            for to in up.iter().filter(|to| *to != from) {
                let calm = usize::try_from(second).unwrap() >= troubles.len();
                let gets = second >= cut_until && (calm || !lost[(second as usize * 7 + from * 3 + to) % lost.len()]);
                if gets {
                    let beat = nodes[*from].beat(*from);
                    nodes[*to].ears.insert(*from, (beat, second));
                }
            }
        }
        up.iter().for_each(|n| nodes[*n].step(second, roles));
    }
}

proptest::proptest! {
    #[test]
    fn whatever_goes_wrong_all_ranks_run_in_one_attempt_in_the_end(
        troubles in proptest::collection::vec(trouble(3), 0..80),
        lost in proptest::collection::vec(proptest::bool::weighted(0.3), 11),
    ) {
        let roles = [Role::Head, Role::Worker, Role::Worker];
        let mut nodes: Vec<Node> = roles.iter().map(|role| Node::new(*role)).collect();
        play(&mut nodes, &roles, &troubles, &lost);
        let attempts: Vec<_> = nodes.iter().map(|n| (n.own.attempt, n.own.rank)).collect();
        proptest::prop_assert!(attempts[0].0.is_some());
        proptest::prop_assert!(attempts.iter().all(|a| *a == (attempts[0].0, Rank::Running)), "{attempts:?}");
    }
}
