//! A file that is whole and wrong: which ranges are, and only those again.
//!
//! The manifest knows files, not ranges. So the sender hashes its extents, we hash ours, and what differs is fetched
//! again. When nothing differs and the file is still wrong, the sender's own bytes are.

use super::line::{Line, LineError};
use super::sched::Want;
use super::wire::MAX_HASHES;
use crate::blobs::Blob;
use crate::buffer::{Buffer, EXTENT};
use crate::error::WeightsError;
use crate::hash::{Midstate, Sha};
use crate::part::Part;
use crate::staging::Staging;

/// What a repair found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repaired {
    /// First bytes of extents that were fetched again.
    pub offsets: Vec<u64>,
    /// Bytes that were fetched again.
    pub bytes: u64,
    /// The digest, when the file is still wrong.
    pub still: Option<Sha>,
}

/// Compares a suspect file with its source, extent by extent, and mends it.
///
/// # Errors
/// As [`LineError`]; what is wrong in the end is in the answer.
pub fn repair(index: u32, blob: &Blob, staging: &Staging, line: &mut dyn Line) -> Result<Repaired, LineError> {
    let mut part = staging.part(index, blob, &Midstate::start()).map_err(LineError::Fatal)?;
    let (mut ours, mut theirs) = (Buffer::new(), Buffer::new());
    let mut done = Repaired::default();
    while part.frontier() < blob.size {
        let hashes = line.hashes(index, part.frontier(), MAX_HASHES)?;
        let round = hashes.as_ref().map_or(1, Vec::len);
        if round == 0 {
            return Err(LineError::lost("the sender gave no hashes"));
        }
        for n in 0..round {
            if part.frontier() >= blob.size {
                break;
            }
            let wanted = hashes.as_ref().and_then(|h| h.get(n));
            mend(&mut part, blob, wanted, line, (&mut ours, &mut theirs), &mut done)?;
        }
    }
    done.still = staging.complete(index, blob, part).map_err(LineError::Fatal)?;
    Ok(done)
}

fn mend(
    part: &mut Part,
    blob: &Blob,
    wanted: Option<&Sha>,
    line: &mut dyn Line,
    (ours, theirs): (&mut Buffer, &mut Buffer),
    done: &mut Repaired,
) -> Result<(), LineError> {
    let at = part.frontier();
    let len = (blob.size - at).min(EXTENT as u64);
    part.peek(ours).map_err(LineError::Fatal)?;
    if ours.used().len() as u64 == len && wanted == Some(&Sha::of(ours.used())) {
        return part.accept(ours).map_err(LineError::Fatal);
    }
    let want = Want { file: part.index(), offset: at, len: u32::try_from(len).unwrap_or(u32::MAX) };
    line.ask(&want)?;
    if line.take(theirs, &|| false)? != want {
        return Err(LineError::Fatal(WeightsError::Peer("the sender answered another question".into())));
    }
    if wanted.is_some_and(|w| *w != Sha::of(theirs.used())) {
        return Err(LineError::lost(format!("{} at byte {at} was changed on its way again", blob.path)));
    }
    done.offsets.push(at);
    done.bytes += len;
    part.append(theirs, None).map_err(LineError::Fatal)
}
