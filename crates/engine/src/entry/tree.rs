//! Which processes are ours: everything below one of them in `/proc`.

use std::path::Path;

/// A row of the process table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// Its parent's id.
    pub parent: i32,
    /// False for one that ended and was not waited for.
    pub lives: bool,
}

/// Reads `/proc/PID/stat`: `PID (NAME) STATE PARENT …`, where the name may hold anything (proc_pid_stat(5)).
#[must_use]
pub fn parse(stat: &str) -> Option<Process> {
    let (pid, rest) = stat.split_once(" (")?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let lives = !matches!(fields.next()?, "Z" | "X");
    Some(Process { pid: pid.parse().ok()?, parent: fields.next()?.parse().ok()?, lives })
}

/// The process table; a process that ends meanwhile is left out.
#[must_use]
pub fn table(proc: &Path) -> Vec<Process> {
    let Ok(entries) = std::fs::read_dir(proc) else {
        return Vec::new();
    };
    let pids = entries.flatten().filter(|e| e.file_name().to_str().is_some_and(|n| n.parse::<i32>().is_ok()));
    // A name need not be text.
    let read = |entry: std::fs::DirEntry| std::fs::read(entry.path().join("stat")).ok();
    pids.filter_map(read).filter_map(|bytes| parse(&String::from_utf8_lossy(&bytes))).collect()
}

/// Living processes below `root`, `root` itself not among them.
#[must_use]
pub fn below(root: i32, table: &[Process]) -> Vec<i32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        let children = table.iter().filter(|p| p.parent == parent).map(|p| p.pid);
        let new: Vec<i32> = children.filter(|pid| !found.contains(pid)).collect();
        found.extend(new);
        next += 1;
    }
    let lives = |pid: &i32| table.iter().any(|p| p.pid == *pid && p.lives);
    found.into_iter().skip(1).filter(lives).collect()
}

/// True when a living process below `root` has this name (at most 15 bytes of it are kept, proc_pid_comm(5)).
#[must_use]
pub fn runs(proc: &Path, root: i32, name: &str) -> bool {
    let named =
        |pid: &i32| std::fs::read(proc.join(format!("{pid}/comm"))).is_ok_and(|c| c.trim_ascii() == name.as_bytes());
    below(root, &table(proc)).iter().any(named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let process = parse("42 (a) Z 1 (b) S 7 42 42 0").unwrap();
        assert_eq!(process, Process { pid: 42, parent: 7, lives: true });
        assert!(!parse("42 (VLLM::Worker) Z 7 1 1").unwrap().lives);
        assert_eq!(parse("42 (x)"), None);
    }

    #[test]
    fn only_what_is_below_is_found() {
        let row = |pid, parent, lives| Process { pid, parent, lives };
        let table = [row(1, 0, true), row(2, 1, true), row(3, 2, false), row(4, 3, true), row(5, 0, true)];
        assert_eq!(below(1, &table), [2, 4]);
        assert_eq!(below(5, &table), [] as [i32; 0]);
        // No table makes it loop.
        assert_eq!(below(1, &[row(1, 2, true), row(2, 1, true)]), [2]);
    }

    #[test]
    fn this_process_is_in_the_table() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(table(Path::new("/proc")).iter().any(|p| p.pid == own && p.lives));
        assert!(table(Path::new("/nowhere")).is_empty());
    }

    proptest::proptest! {
        #[test]
        fn no_line_breaks_the_reader(text in "\\PC{0,60}") {
            let _ = parse(&text);
        }
    }
}
