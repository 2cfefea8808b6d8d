//! Lines out of bytes.
//!
//! Frames at `\n` alone and looks at nothing else: a multibyte character split over two reads and bytes that are
//! no text at all come out as they went in. It never holds more than one line at its limit and one read.

use bytes::{Buf as _, Bytes, BytesMut};

/// Cuts what an agent writes into lines.
#[derive(Debug, Default)]
pub(super) struct Framer {
    /// What was pushed and not yet handed out.
    pending: BytesMut,
    /// How far `pending` was searched for a newline, so that a long line is searched once.
    searched: usize,
    /// How long the oversized line is so far that is being skipped.
    skipping: Option<u64>,
}

/// One line of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A line that is not empty, without its line ending.
    Line(Bytes),
    /// A line beyond [`LINE_LIMIT`], of which nothing was kept.
    Oversized {
        /// Its length in bytes, without the newline.
        length: u64,
    },
}

impl Framer {
    /// Takes what was read. Take out every frame with [`Framer::take`] before pushing again.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// The next whole line, if there is one. Empty lines are left out.
    pub(super) fn take(&mut self) -> Option<Frame> {
        loop {
            let Some(at) = self.pending[self.searched..].iter().position(|byte| *byte == b'\n') else {
                self.searched = self.pending.len();
                if self.skipping.is_some() || self.pending.len() > LINE_LIMIT {
                    self.skip_pending();
                }
                return None;
            };
            let line = self.pending.split_to(self.searched + at);
            self.pending.advance(1);
            self.searched = 0;
            if self.pending.is_empty() {
                // The next line gets memory of its own size instead of keeping the largest ever seen.
                self.pending = BytesMut::new();
            }
            if let Some(frame) = self.frame(line) {
                return Some(frame);
            }
        }
    }

    /// The end of the output: what is left is a line of its own, even without a newline.
    pub(super) fn finish(&mut self) -> Option<Frame> {
        let line = std::mem::take(&mut self.pending);
        self.searched = 0;
        self.frame(line)
    }

    fn frame(&mut self, line: BytesMut) -> Option<Frame> {
        let skipped = self.skipping.take().unwrap_or(0);
        let length = skipped + line.len() as u64;
        if skipped > 0 || line.len() > LINE_LIMIT {
            return Some(Frame::Oversized { length });
        }
        let mut line = line.freeze();
        if line.ends_with(b"\r") {
            line.truncate(line.len() - 1);
        }
        (!line.is_empty()).then_some(Frame::Line(line))
    }

    fn skip_pending(&mut self) {
        *self.skipping.get_or_insert(0) += self.pending.len() as u64;
        self.pending = BytesMut::new();
        self.searched = 0;
    }
}

/// The longest line that is kept, in bytes. Agents put whole files into one update (several MB were seen), while a
/// program that writes without newlines must not fill our memory. A longer line becomes a named error event.
pub const LINE_LIMIT: usize = 8 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(pieces: &[&[u8]]) -> Vec<Frame> {
        let mut framer = Framer::default();
        let mut frames = Vec::new();
        for piece in pieces {
            framer.push(piece);
            while let Some(frame) = framer.take() {
                frames.push(frame);
            }
        }
        frames.extend(framer.finish());
        frames
    }

    fn line(text: &str) -> Frame {
        Frame::Line(Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn lines_come_out_whole_however_they_are_split_over_reads() {
        let text = "{\"ä\":1}\nzwei\n\n\r\ndrei\r\n".as_bytes();
        let whole = vec![line("{\"ä\":1}"), line("zwei"), line("drei")];
        for size in 1..=text.len() {
            let pieces: Vec<&[u8]> = text.chunks(size).collect();
            assert_eq!(frames(&pieces), whole, "in pieces of {size}");
        }
    }

    #[test]
    fn the_last_line_needs_no_newline() {
        assert_eq!(frames(&[b"one\ntw", b"o"]), [line("one"), line("two")]);
    }

    #[test]
    fn bytes_that_are_no_text_pass_through() {
        assert_eq!(frames(&[b"\xff\xfe\nok\n"]), [Frame::Line(Bytes::from_static(b"\xff\xfe")), line("ok")]);
    }

    #[test]
    fn a_line_at_the_limit_is_kept_and_one_byte_more_is_skipped_to_its_end() {
        let at_limit = vec![b'x'; LINE_LIMIT];
        assert_eq!(frames(&[&at_limit, b"\nafter\n"]).len(), 2);
        for pieces in [vec![&at_limit[..], b"x\nafter\n"], vec![&at_limit[..], b"x", b"\nafter\n"]] {
            let oversized = Frame::Oversized { length: LINE_LIMIT as u64 + 1 };
            assert_eq!(frames(&pieces), [oversized, line("after")]);
        }
    }

    #[test]
    fn an_oversized_line_without_end_is_reported_at_the_end() {
        let at_limit = vec![b'x'; LINE_LIMIT];
        let length = 2 * LINE_LIMIT as u64;
        assert_eq!(frames(&[&at_limit, &at_limit]), [Frame::Oversized { length }]);
    }

    #[test]
    fn an_oversized_line_is_not_held() {
        let mut framer = Framer::default();
        let piece = vec![b'x'; 1024 * 1024];
        for _ in 0..64 {
            framer.push(&piece);
            assert_eq!(framer.take(), None);
            assert!(framer.pending.len() <= LINE_LIMIT + piece.len());
        }
    }
}
