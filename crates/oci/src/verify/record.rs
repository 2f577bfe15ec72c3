//! RECORDs of the distributions in the whole tree.

use base64::Engine as _;

use super::Report;
use crate::base::facts::{first_field, join};
use crate::base::index::{Node, TreeIndex, normal};
use crate::base::paths::Overlay;

/// Compares every RECORD with the tree; one that our layers (from number `first`) wrote must hold, others are noted.
pub(super) fn check(index: &TreeIndex, first: usize, report: &mut Report) {
    let overlay = Overlay::new(Some(index));
    let (mut ours, mut theirs) = (0, 0);
    for (folder, distribution) in &index.distributions {
        let path = format!("{folder}/RECORD");
        let site = folder.rsplit_once('/').map_or("", |(site, _)| site);
        let twin = index.named(&distribution.name).any(|(f, _)| f != folder && f.starts_with(&format!("{site}/")));
        let wrong = match index.kept.get(&path) {
            _ if twin => Some(format!("{} is there twice below /{site}", normal(&distribution.name))),
            Some(text) => text.lines().find_map(|line| row(line, site, index, &overlay).err()),
            None => None,
        };
        let is_ours = matches!(index.nodes.get(&path), Some(Node::F { l, .. }) if *l as usize >= first);
        *(if is_ours { &mut ours } else { &mut theirs }) += 1;
        if let Some(why) = wrong {
            let line = format!("/{path}: {why}");
            if is_ours { report.problems.push(line) } else { report.notes.push(line) }
        }
    }
    report.proved.push(format!("RECORD of {ours} distributions that our layers wrote, looked at {theirs} of the base"));
}

/// One row: the file is there, of the size and (where it is known) the hash.
fn row(line: &str, site: &str, index: &TreeIndex, overlay: &Overlay<'_>) -> Result<(), String> {
    let line = line.trim_end();
    let Some(field) = first_field(line) else { return Ok(()) };
    let path = join(site, &field).ok_or_else(|| format!("{field:?} leads out"))?;
    let real = overlay.resolve(&path)?;
    let Some(Node::F { s, h, .. }) = index.nodes.get(&real) else {
        return Err(format!("/{real} is not there"));
    };
    let mut fields = line.rsplit(',');
    let (size, hash) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
    if !size.is_empty() && size.parse() != Ok(*s) {
        return Err(format!("/{real} has {s} bytes, not {size}"));
    }
    let wanted = hash.strip_prefix("sha256=").and_then(decode);
    match (wanted, h) {
        (Some(wanted), Some(has)) if wanted != *has => Err(format!("/{real} has another sha256, {has}")),
        _ => Ok(()),
    }
}

/// A RECORD's hash in hexadecimal.
fn decode(text: &str) -> Option<String> {
    let bytes = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()?;
    let bytes: [u8; 32] = bytes.try_into().ok()?;
    Some(crate::Digest::from_sha256(&bytes).hex().to_owned())
}
