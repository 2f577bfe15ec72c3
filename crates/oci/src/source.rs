//! Where blobs come from, other than a registry: trait [`BlobSource`], and a feed of another node's layout over a pair of
//! pipes (an ssh connection's).
//!
//! The feed's language: one JSON line `{"digest":…,"from":N}` a question; one JSON line `{"size":S}` and S-N bytes, or
//! `{"error":…}`, an answer.

use std::io::{BufRead, Read, Seek as _, SeekFrom, Write};

use serde::{Deserialize, Serialize};

use crate::digest::{self, Digest, PIECE};
use crate::error::OciError;
use crate::layout::Layout;
use crate::manifest::{DOCUMENT_MAX, Descriptor, check_digest, check_size};
use crate::pace::Pace;
use crate::partial::{Opened, Partial, check_space, still_needed};
use crate::registry::{Event, Pulled};

/// Longest line of the feed's language.
const LINE_MAX: u64 = 4096;

/// What kind of document is asked for: a registry keeps manifests apart from blobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A manifest or an index.
    Manifest,
    /// A blob that is small, i.e. a config.
    Blob,
}

/// Something that has blobs.
pub trait BlobSource {
    /// A document by digest, proved.
    ///
    /// # Errors
    /// When the source has it not, or fails.
    fn document(&mut self, kind: Kind, digest: &Digest) -> Result<Vec<u8>, OciError>;

    /// Brings blobs that the layout has not.
    ///
    /// # Errors
    /// No room, or the source fails; what came is kept.
    fn fetch(&mut self, layout: &Layout, wanted: &[Descriptor], progress: &dyn Fn(Event)) -> Result<Pulled, OciError>;
}

/// No source: what is not here already is nowhere.
#[derive(Debug, Clone, Copy)]
pub struct Nowhere;

impl BlobSource for Nowhere {
    fn document(&mut self, _: Kind, digest: &Digest) -> Result<Vec<u8>, OciError> {
        Err(nowhere(digest))
    }

    fn fetch(&mut self, layout: &Layout, wanted: &[Descriptor], _: &dyn Fn(Event)) -> Result<Pulled, OciError> {
        match wanted.iter().find(|d| !layout.has(&d.digest)) {
            Some(missing) => Err(nowhere(&missing.digest)),
            None => Ok(Pulled { present: wanted.len() as u64, ..Pulled::default() }),
        }
    }
}

fn nowhere(digest: &Digest) -> OciError {
    let why = "neither the closure nor this node has it, and the image's reference names no registry; \
               bring it with sparklane image pull or sparklane image adopt";
    OciError::document(format!("blob {digest}"), why)
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    digest: Digest,
    from: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum Head {
    Size(u64),
    Error(String),
}

/// Answers questions about a layout until the other side closes. `rate` bounds the bytes per second.
///
/// # Errors
/// When the pipe breaks, or what is asked is no question.
pub fn feed(
    layout: &Layout,
    questions: impl BufRead,
    mut answers: impl Write,
    rate: Option<u64>,
) -> Result<(), OciError> {
    let pipe = || OciError::io("write", "-");
    let mut questions = questions;
    let pace = Pace::new(rate);
    while let Some(line) = read_line(&mut questions)? {
        let question: Question =
            serde_json::from_str(&line).map_err(|e| OciError::document("question", e.to_string()))?;
        let (mut file, size) = match layout.open_blob(&question.digest) {
            Ok((_, size)) if question.from > size => {
                say(&mut answers, &Head::Error(format!("{} has only {size} bytes", question.digest)))?;
                continue;
            }
            Ok(found) => found,
            Err(error) => {
                say(&mut answers, &Head::Error(error.to_string()))?;
                continue;
            }
        };
        file.seek(SeekFrom::Start(question.from)).map_err(OciError::io("read", layout.root()))?;
        say(&mut answers, &Head::Size(size))?;
        let mut file = file.take(size - question.from);
        let mut piece = vec![0; PIECE];
        loop {
            let n = match file.read(&mut piece) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(OciError::io("read", layout.root())(e)),
            };
            pace.take(n);
            answers.write_all(&piece[..n]).map_err(pipe())?;
        }
        answers.flush().map_err(pipe())?;
        if file.limit() > 0 {
            // The length was promised: the only way to say that it fails is to end.
            return Err(check_size("blob", size, size - file.limit())
                .err()
                .unwrap_or_else(|| OciError::document("blob", "it shrank")));
        }
    }
    Ok(())
}

fn say(answers: &mut impl Write, head: &Head) -> Result<(), OciError> {
    let mut line = serde_json::to_vec(head).map_err(|e| OciError::document("answer", e.to_string()))?;
    line.push(b'\n');
    answers.write_all(&line).and_then(|()| answers.flush()).map_err(OciError::io("write", "-"))
}

/// A line without its end; `None` at the end of the stream.
///
/// # Errors
/// When it is too long, cut off, not text, or the stream breaks.
pub fn read_line(from: &mut impl BufRead) -> Result<Option<String>, OciError> {
    let mut bytes = Vec::new();
    from.take(LINE_MAX).read_until(b'\n', &mut bytes).map_err(OciError::io("read", "-"))?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.pop() != Some(b'\n') {
        return Err(OciError::document("line", "it is too long, or the other side ended within it"));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| OciError::document("line", "it is no text"))
}

/// The asking side of [`feed`].
pub struct Fed<R, W> {
    answers: R,
    questions: W,
}

impl<R: BufRead, W: Write> Fed<R, W> {
    /// Asks over a pair of pipes.
    pub fn new(answers: R, questions: W) -> Self {
        Self { answers, questions }
    }

    /// Asks for a blob from an offset on; gives its whole size. The bytes follow on `answers`.
    fn ask(&mut self, digest: &Digest, from: u64) -> Result<u64, OciError> {
        let question = Question { digest: digest.clone(), from };
        let mut line = serde_json::to_vec(&question).map_err(|e| OciError::document("question", e.to_string()))?;
        line.push(b'\n');
        self.questions.write_all(&line).and_then(|()| self.questions.flush()).map_err(OciError::io("write", "-"))?;
        let line = read_line(&mut self.answers)?;
        let line = line.ok_or_else(|| OciError::document(format!("blob {digest}"), "its source has ended"))?;
        match serde_json::from_str(&line) {
            Ok(Head::Size(size)) => Ok(size),
            Ok(Head::Error(why)) => Err(OciError::document(format!("blob {digest}"), why)),
            Err(_) => Err(OciError::document(format!("blob {digest}"), "its source answers what is no answer")),
        }
    }

    fn one(&mut self, layout: &Layout, wanted: &Descriptor, progress: &dyn Fn(Event)) -> Result<u64, OciError> {
        let mut partial = match Partial::open(layout, wanted)? {
            Opened::There => return Ok(0),
            Opened::Partial(partial) => partial,
        };
        let digest = || wanted.digest.clone();
        progress(Event::Begin { digest: digest(), size: wanted.size, have: partial.have() });
        let mut moved = 0;
        loop {
            if partial.is_full() {
                if partial.finish()? {
                    break;
                }
                progress(Event::Restart { digest: digest(), why: "what an earlier run left was damaged".into() });
                if wanted.size == 0 {
                    return Err(OciError::document(format!("blob {}", wanted.digest), "it cannot be empty"));
                }
            }
            let size = self.ask(&wanted.digest, partial.have())?;
            check_size(&format!("blob {} of the source", wanted.digest), wanted.size, size)?;
            while !partial.is_full() {
                let buffer = self.answers.fill_buf().map_err(OciError::io("read", "-"))?;
                let left = usize::try_from(wanted.size - partial.have()).unwrap_or(usize::MAX);
                let count = buffer.len().min(left);
                if count == 0 {
                    return Err(OciError::document(format!("blob {}", wanted.digest), "its source ended within it"));
                }
                partial.append(&buffer[..count])?;
                self.answers.consume(count);
                moved += count as u64;
                progress(Event::Bytes { digest: digest(), count: count as u64 });
            }
        }
        progress(Event::Done { digest: digest() });
        Ok(moved)
    }
}

impl<R: BufRead, W: Write> BlobSource for Fed<R, W> {
    fn document(&mut self, _: Kind, digest: &Digest) -> Result<Vec<u8>, OciError> {
        let size = self.ask(digest, 0)?;
        if size > DOCUMENT_MAX {
            return Err(OciError::document(
                format!("blob {digest}"),
                format!("{size} bytes are too many for a document"),
            ));
        }
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        self.answers.read_exact(&mut bytes).map_err(OciError::io("read", "-"))?;
        check_digest(&format!("blob {digest}"), digest, digest::of(&bytes))?;
        Ok(bytes)
    }

    fn fetch(&mut self, layout: &Layout, wanted: &[Descriptor], progress: &dyn Fn(Event)) -> Result<Pulled, OciError> {
        let here = |d: &&Descriptor| layout.open_blob(&d.digest).is_ok_and(|(_, size)| size == d.size);
        let missing: Vec<&Descriptor> = wanted.iter().filter(|d| !here(d)).collect();
        check_space(layout, still_needed(layout, missing.iter().copied()))?;
        let mut sum = Pulled { present: (wanted.len() - missing.len()) as u64, ..Pulled::default() };
        for wanted in missing {
            sum.bytes += self.one(layout, wanted, progress)?;
            sum.blobs += 1;
        }
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::os::unix::net::UnixStream;

    use camino::Utf8PathBuf;
    use proptest::prelude::*;

    use super::*;

    fn layout() -> (tempfile::TempDir, Layout) {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::open_or_create(Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap()).unwrap();
        (dir, layout)
    }

    fn fed(layout: &Layout) -> Fed<BufReader<UnixStream>, UnixStream> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let layout = layout.clone();
        std::thread::spawn(move || feed(&layout, BufReader::new(theirs.try_clone().unwrap()), theirs, None));
        Fed::new(BufReader::new(ours.try_clone().unwrap()), ours)
    }

    #[test]
    fn a_feed_brings_what_is_missing_and_goes_on_where_it_was() {
        let ((_a, from), (_b, to)) = (layout(), layout());
        let (one, two) = (vec![1; 3 << 20], vec![2; 5]);
        from.write_blob(&one).unwrap();
        from.write_blob(&two).unwrap();
        to.write_blob(&two).unwrap();
        let wanted = [Descriptor::of("x", &one), Descriptor::of("x", &two)];
        std::fs::write(to.partial_dir().join(wanted[0].digest.hex()), &one[..1 << 20]).unwrap();
        let mut source = fed(&from);
        let moved = source.fetch(&to, &wanted, &|_| ()).unwrap();
        assert_eq!(moved, Pulled { blobs: 1, bytes: 2 << 20, present: 1 });
        to.prove_blob(&wanted[0]).unwrap();
        assert_eq!(source.document(Kind::Blob, &wanted[1].digest).unwrap(), two);
        // The pipe is still in step after a blob that is not there.
        let missing = Descriptor::of("x", b"missing");
        assert!(source.fetch(&to, &[missing], &|_| ()).unwrap_err().to_string().contains("no blob"));
        assert_eq!(source.document(Kind::Blob, &wanted[1].digest).unwrap(), two);
    }

    #[test]
    fn damage_at_the_source_is_found() {
        let ((_a, from), (_b, to)) = (layout(), layout());
        let digest = from.write_blob(b"good").unwrap();
        std::fs::write(from.own_path(&digest), b"evil").unwrap();
        let wanted = [Descriptor::of("x", b"good")];
        assert!(matches!(fed(&from).fetch(&to, &wanted, &|_| ()), Err(OciError::DigestMismatch { .. })));
        assert!(!to.has(&digest));
        assert!(fed(&from).document(Kind::Blob, &digest).is_err());
        std::fs::write(from.own_path(&digest), b"longer").unwrap();
        assert!(matches!(fed(&from).fetch(&to, &wanted, &|_| ()), Err(OciError::SizeMismatch { .. })));
    }

    #[test]
    fn a_source_that_ends_leaves_what_came() {
        let (_b, to) = layout();
        let wanted = Descriptor::of("x", b"abcdef");
        let answers = BufReader::new(&b"{\"size\":6}\nabc"[..]);
        let mut source = Fed::new(answers, std::io::sink());
        assert!(source.fetch(&to, std::slice::from_ref(&wanted), &|_| ()).is_err());
        assert_eq!(still_needed(&to, [&wanted]), 3);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn any_answer_and_any_question_is_borne(bytes in prop::collection::vec(any::<u8>(), 0..64), text in "(\\{\"(size|error|digest)\":[0-9]{0,20}\\}\n|\\PC{0,20}\n)*") {
            let (_d, layout) = layout();
            for input in [bytes.as_slice(), text.as_bytes()] {
                let _ = feed(&layout, BufReader::new(input), std::io::sink(), None);
                let _ = Fed::new(BufReader::new(input), std::io::sink()).fetch(&layout, &[Descriptor::of("x", b"abc")], &|_| ());
            }
        }
    }
}
