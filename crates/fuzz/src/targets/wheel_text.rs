//! The texts of a wheel and of a lock: RECORD, entry points, METADATA, WHEEL, file name, lock.

use sparklane_oci::base::facts;
use sparklane_oci::wheel::metadata::{About, Metadata};
use sparklane_oci::wheel::name::FileName;
use sparklane_oci::wheel::{Interpreter, Lock, entry_points, record, script};

/// One input.
pub fn run(data: &[u8]) {
    if let Ok(lock) = Lock::parse(data) {
        let text = lock.text().expect("what was read can be written");
        assert_eq!(Lock::parse(text.as_bytes()).as_ref(), Ok(&lock));
    }
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(rows) = record::parse(text) {
        let mut rows: Vec<_> = rows.into_iter().filter(|r| !r.path.is_empty()).collect();
        let mut again = record::parse(&record::write(&rows)).expect("what was read can be written");
        rows.sort();
        again.sort();
        assert_eq!(again, rows);
    }
    if let Ok(scripts) = entry_points::scripts(text) {
        let python = Interpreter::new("/usr/bin/python3").expect("an absolute path");
        for found in &scripts {
            assert!(!found.name().contains('/') && !found.name().starts_with('.') && !found.name().is_empty());
            // A module or attribute with anything but names and dots would be code of the wheel's choice.
            let body = script::text(found, &python);
            assert_eq!(body.lines().count(), 7, "{body}");
        }
        assert!(scripts.windows(2).all(|two| two[0].name() < two[1].name()));
    }
    let _ = (Metadata::parse(text), About::parse(text), facts::metadata(text));
    if let Ok(name) = FileName::parse(text) {
        assert!(!name.name.is_empty() && !name.tags.is_empty());
    }
    for path in facts::record_paths(text, "usr/lib/python3") {
        assert!(crate::input::stays_below(&path), "{path:?}");
    }
}
