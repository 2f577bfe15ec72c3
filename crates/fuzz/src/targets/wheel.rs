//! A whole wheel of files with names and bytes of the fuzzer's choice: what is installed stays below its folders, and the
//! layer that is written holds what was installed.
use std::collections::BTreeSet;

use sha2::{Digest as _, Sha256};
use crate::input::{Part, file, parts, stays_below, zip};
use sparklane_oci::base::scan::{self, Keep};
use sparklane_oci::layer::{TreePath, write_layer};
use sparklane_oci::verify;
use sparklane_oci::wheel::record::{self, Row};
use sparklane_oci::wheel::{Arch, Interpreter, Site, Target, Wheel, install};

const INFO: &str = "foo-1.0.dist-info";

/// `ENTRY` and `RECORD` stand for those files, `INFO` in a name for the folder of metadata; a `+` before a name has it deflated.
struct Input {
    files: Vec<Part>,
    entry_points: Option<Vec<u8>>,
    /// Instead of the truth.
    record: Option<Vec<u8>>,
}

fn input(data: &[u8]) -> Input {
    let mut input = Input { files: Vec::new(), entry_points: None, record: None };
    for (name, bytes) in parts(data).into_iter().take(200) {
        let bytes = bytes.to_vec();
        match name.as_str() {
            "ENTRY" => input.entry_points = Some(bytes),
            "RECORD" => input.record = Some(bytes),
            name if name.len() < 2000 => {
                let (name, deflate) = name.strip_prefix('+').map_or((name, false), |name| (name, true));
                input.files.push(Part { name: name.replace("INFO", INFO), bytes, deflate });
            }
            _ => {}
        }
    }
    input
}

fn site() -> Site {
    let path = |p: &str| TreePath::new(p).expect("a plain path");
    Site {
        target: Target { minor: 12, arch: Arch::Aarch64, glibc: (2, 39) },
        site_packages: path("usr/local/lib/python3.12/dist-packages"),
        bin: path("usr/local/bin"),
        data: path("usr/local"),
        headers: Some(path("usr/local/include/python3.12")),
        python: Interpreter::new("/usr/bin/python3").expect("an absolute path"),
        mtime: 1_700_000_000,
        pyc: false,
    }
}

fn wheel(input: Input) -> Vec<u8> {
    let part = |name: &str, bytes: &[u8]| Part { name: name.to_owned(), bytes: bytes.to_vec(), deflate: false };
    let mut parts = input.files;
    let about = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    parts.push(part(&format!("{INFO}/METADATA"), b"Metadata-Version: 2.1\nName: foo\nVersion: 1.0\n"));
    parts.push(part(&format!("{INFO}/WHEEL"), about));
    parts.extend(input.entry_points.map(|text| part(&format!("{INFO}/entry_points.txt"), &text)));
    let row = |p: &Part| Row {
        path: p.name.clone(),
        sha256: Some(Sha256::digest(&p.bytes).into()),
        size: Some(p.bytes.len() as u64),
    };
    let mut rows: Vec<Row> = parts.iter().filter(|p| !p.name.ends_with('/')).map(row).collect();
    rows.push(Row { path: format!("{INFO}/RECORD"), sha256: None, size: None });
    let truth = record::write(&rows);
    parts.push(part(&format!("{INFO}/RECORD"), &input.record.unwrap_or_else(|| truth.into_bytes())));
    zip(&parts)
}

/// One input.
pub fn run(data: &[u8]) {
    let Ok(wheel) = Wheel::open(file(&wheel(input(data))), "foo-1.0-py3-none-any.whl") else { return };
    let Ok(installed) = install(&[wheel], &site()) else { return };
    let mut wanted = BTreeSet::new();
    for entry in &installed.entries {
        let path = entry.path.as_str();
        assert!(stays_below(path) && path.starts_with("usr/local/"), "{path:?}");
        wanted.insert(path.to_owned());
    }
    let mut blob = Vec::new();
    let Ok(written) = write_layer(&installed.entries, &mut blob) else { return };
    let scan = scan::layer(&blob[..], &Keep::new()).expect("our own layer can be scanned");
    assert_eq!(scan.diff_id, written.diff_id);
    let found: BTreeSet<String> = scan.rows.into_iter().map(|row| row.path).collect();
    assert_eq!(found, wanted);
    let walked = verify::walk("layer", &blob[..]).expect("our own layer can be walked");
    assert_eq!((walked.diff_id, walked.items.len()), (written.diff_id, written.entries));
}
