use proptest::prelude::*;

use super::*;

const MIB: u64 = EXTENT as u64;

/// Runs a plan to its end against connections of given speeds in bytes per 0.1 ms; gives bytes per connection and ticks.
fn run(files: &[(u32, u64, u64)], speeds: &[u64], ahead: usize) -> (Vec<u64>, u64) {
    let mut sched = Scheduler::new(files, ahead, 4);
    let mut held: Vec<Option<(Want, u64)>> = vec![None; speeds.len()];
    let mut frontier: BTreeMap<u32, u64> = files.iter().map(|(f, _, at)| (*f, *at)).collect();
    let mut parked: BTreeSet<Want> = BTreeSet::new();
    let (mut bytes, mut tick) = (vec![0; speeds.len()], 0);
    loop {
        let mut finished = true;
        for (who, speed) in speeds.iter().enumerate() {
            let mut budget = *speed;
            while budget > 0 {
                let Some((want, left)) = held[who].take() else {
                    let now = Duration::from_micros(tick * 100);
                    match sched.next(u32::try_from(who).unwrap(), now) {
                        Next::Take(want) => held[who] = Some((want, u64::from(want.len))),
                        Next::Wait => {
                            finished = false;
                            break;
                        }
                        Next::Finished => break,
                    }
                    continue;
                };
                finished = false;
                if left > budget {
                    held[who] = Some((want, left - budget));
                    break;
                }
                budget -= left;
                if sched.arrived(&want) {
                    bytes[who] += u64::from(want.len);
                    assert!(parked.insert(want), "an extent arrives once");
                    let at = frontier.get_mut(&want.file).unwrap();
                    while let Some(ready) = parked.iter().find(|w| w.file == want.file && w.offset == *at).copied() {
                        parked.remove(&ready);
                        *at += u64::from(ready.len);
                        sched.written();
                    }
                }
            }
        }
        assert!(parked.len() <= ahead);
        tick += 1;
        if finished || files.iter().all(|(file, size, _)| frontier[file] >= *size) {
            break;
        }
        assert!(tick < 10_000_000, "the plan hangs");
    }
    for (file, size, at) in files {
        assert_eq!(frontier[file], *size.max(at));
    }
    (bytes, tick)
}

#[test]
fn shares_follow_speeds_for_many_files_and_for_one() {
    let many: Vec<_> = (0..48).map(|n| (n, 20 * MIB, 0)).collect();
    for files in [&many[..], &[(0, 960 * MIB, 0)][..]] {
        for (fast, slow) in [(80_000, 10_000), (40_000, 20_000), (30_000, 30_000)] {
            let (bytes, ticks) = run(files, &[fast, slow], 64);
            let sum = 960.0 * 1_048_576.0;
            let share = bytes[1] as f64 / sum;
            let fair = slow as f64 / (fast + slow) as f64;
            assert!((share / fair - 1.0).abs() < 0.1, "{share} {fair}");
            let best = sum / (fast + slow) as f64;
            assert!(ticks as f64 <= best / 0.95, "{ticks} {best}");
        }
    }
}

#[test]
fn a_rail_that_never_answers_only_slows() {
    let (bytes, ticks) = run(&[(0, 200 * MIB, 0)], &[100_000, 1], 64);
    assert!(bytes[1] <= 2 * MIB);
    // The bytes themselves, and one wait for the extent that the dead rail holds.
    assert!(ticks < 2100 + 1500 + 500, "{ticks}");
}

#[test]
fn sizes_past_any_memory_are_only_numbers() {
    let size = (1 << 42) + 12345;
    let mut sched = Scheduler::new(&[(7, size, (1 << 41) + 64)], 8, 1);
    let Next::Take(first) = sched.next(0, Duration::ZERO) else { panic!() };
    assert_eq!(first, Want { file: 7, offset: (1 << 41) + 64, len: 1 << 20 });
    let mut tail = Scheduler::new(&[(7, size, size - 3)], 8, 1);
    assert_eq!(tail.next(0, Duration::ZERO), Next::Take(Want { file: 7, offset: size - 3, len: 3 }));
    assert_eq!(tail.next(0, Duration::ZERO), Next::Wait);
    let mut none = Scheduler::new(&[(0, 0, 0), (1, 5, 5)], 8, 1);
    assert_eq!(none.next(0, Duration::ZERO), Next::Finished);
}

#[derive(Debug, Clone)]
enum Act {
    Ask(u32),
    Deliver(u32),
    Lose(u32),
    Later(u16),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0u32..4).prop_map(Act::Ask),
        4 => (0u32..4).prop_map(Act::Deliver),
        1 => (0u32..4).prop_map(Act::Lose),
        1 => any::<u16>().prop_map(Act::Later),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_interleaving_brings_every_byte_once(
        sizes in proptest::collection::vec(0u64..6 * MIB, 1..6),
        acts in proptest::collection::vec(act(), 0..200),
    ) {
        let files: Vec<(u32, u64, u64)> =
            sizes.iter().enumerate().map(|(n, size)| (u32::try_from(n).unwrap(), *size, 0)).collect();
        let mut sched = Scheduler::new(&files, 5, 2);
        let mut held: BTreeMap<u32, Vec<Want>> = BTreeMap::new();
        let mut got: BTreeSet<Want> = BTreeSet::new();
        let mut now = Duration::ZERO;
        let deliver = |sched: &mut Scheduler, got: &mut BTreeSet<Want>, want: Want| {
            if sched.arrived(&want) {
                assert!(got.insert(want));
                sched.written();
            }
        };
        for act in acts {
            match act {
                Act::Ask(who) => if let Next::Take(want) = sched.next(who, now) {
                    held.entry(who).or_default().push(want);
                },
                Act::Deliver(who) => if let Some(want) = held.get_mut(&who).and_then(Vec::pop) {
                    deliver(&mut sched, &mut got, want);
                },
                Act::Lose(who) => {
                    sched.lost(who);
                    held.remove(&who);
                }
                Act::Later(ms) => now += Duration::from_millis(u64::from(ms)),
            }
        }
        for who in 0..4 {
            sched.lost(who);
        }
        loop {
            match sched.next(9, now) {
                Next::Take(want) => deliver(&mut sched, &mut got, want),
                Next::Finished => break,
                Next::Wait => prop_assert!(false, "nothing is held, and the plan waits"),
            }
        }
        let sum: u64 = got.iter().map(|w| u64::from(w.len)).sum();
        prop_assert_eq!(sum, sizes.iter().sum::<u64>());
    }
}
