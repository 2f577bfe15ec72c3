//! Small wheels.

use base64::Engine as _;
use camino::Utf8Path;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use sparklane_oci::digest;

/// Writes a pure wheel into a folder; gives its row of a lock.
pub fn write(folder: &Utf8Path, name: &str, version: &str, files: &[(&str, &str)]) -> Value {
    let info = format!("{name}-{version}.dist-info");
    let mut all: Vec<(String, String)> = files.iter().map(|(p, b)| ((*p).to_owned(), (*b).to_owned())).collect();
    all.push((format!("{info}/METADATA"), format!("Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")));
    let wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n";
    all.push((format!("{info}/WHEEL"), wheel.to_owned()));
    let hash = |b: &str| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(Sha256::digest(b));
    let mut record: String = all.iter().map(|(p, b)| format!("{p},sha256={},{}\n", hash(b), b.len())).collect();
    record.push_str(&format!("{info}/RECORD,,\n"));
    all.push((format!("{info}/RECORD"), record));
    let bytes = zip(&all);
    let file = format!("{name}-{version}-py3-none-any.whl");
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join(&file), &bytes).unwrap();
    json!({ "name": name, "version": version, "file": file, "size": bytes.len(), "sha256": digest::of(&bytes).hex() })
}

/// A zip of stored members.
fn zip(files: &[(String, String)]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, body) in files {
        let mut crc = flate2::Crc::new();
        crc.update(body.as_bytes());
        let mut common = Vec::new();
        common.extend([20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0x28]);
        common.extend(crc.sum().to_le_bytes());
        for _ in 0..2 {
            common.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
        }
        common.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
        common.extend([0, 0]);
        let offset = u32::try_from(out.len()).unwrap();
        out.extend(b"PK\x03\x04");
        out.extend(&common);
        out.extend(name.as_bytes());
        out.extend(body.as_bytes());
        directory.extend(b"PK\x01\x02\x14\x03");
        directory.extend(&common);
        directory.extend([0; 6]);
        directory.extend((0o100_644_u32 << 16).to_le_bytes());
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let count = u16::try_from(files.len()).unwrap().to_le_bytes();
    let start = u32::try_from(out.len()).unwrap();
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend(count);
    out.extend(count);
    out.extend(u32::try_from(directory.len()).unwrap().to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}
