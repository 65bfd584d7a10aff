//! Frames on the channel between controller and helper.
//!
//! A frame is `length: u32 big-endian` (of the rest), `kind: u8`, body. Kind `J` is one JSON message, kind `D` is raw
//! data of a stream: `stream: u32 big-endian`, bytes. Before its first frame the helper writes [`PREAMBLE`];
//! everything before that (banners, rc files) is dropped by [`Preamble`].

use serde::{Serialize, de::DeserializeOwned};

/// Largest accepted frame, in bytes after the length word.
pub const MAX_FRAME: usize = 16 * 1024 * 1024;
/// Largest piece of data in one data frame, in bytes.
pub const DATA_PIECE: usize = 256 * 1024;
/// Separates a login shell's output from the first frame.
pub const PREAMBLE: &[u8] = b"\0\x01gpufleet-node\x02\n";
/// Number of bytes before the preamble after which no helper is expected.
pub const MAX_NOISE: usize = 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes is larger than the limit")]
    TooLarge(usize),
    #[error("a frame of unknown kind {0:#04x}")]
    UnknownKind(u8),
    #[error("a frame is too short")]
    TooShort,
    #[error("a message cannot be read")]
    Message(#[from] serde_json::Error),
}

/// One decoded frame. JSON is not parsed yet, because only the caller knows the type of the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    Json(Vec<u8>),
    Data { stream: u32, bytes: Vec<u8> },
}

impl Frame {
    /// Creates a frame from a message.
    ///
    /// # Errors
    /// If JSON cannot hold the message.
    pub fn message<T: Serialize>(message: &T) -> Result<Self, FrameError> {
        Ok(Self::Json(serde_json::to_vec(message)?))
    }

    /// Parses the message of a JSON frame; `None` for a data frame.
    ///
    /// # Errors
    /// If the JSON is no such message.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<Option<T>, FrameError> {
        match self {
            Self::Json(bytes) => Ok(Some(serde_json::from_slice(bytes)?)),
            Self::Data { .. } => Ok(None),
        }
    }

    /// Returns the bytes to send.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`].
    pub fn encode(&self) -> Result<Vec<u8>, FrameError> {
        let (kind, stream, body): (u8, Option<u32>, &[u8]) = match self {
            Self::Json(bytes) => (b'J', None, bytes),
            Self::Data { stream, bytes } => (b'D', Some(*stream), bytes),
        };
        let length = 1 + stream.map_or(0, |_| 4) + body.len();
        if length > MAX_FRAME {
            return Err(FrameError::TooLarge(length));
        }
        let mut out = Vec::with_capacity(4 + length);
        let word = u32::try_from(length).map_err(|_| FrameError::TooLarge(length))?;
        out.extend_from_slice(&word.to_be_bytes());
        out.push(kind);
        if let Some(stream) = stream {
            out.extend_from_slice(&stream.to_be_bytes());
        }
        out.extend_from_slice(body);
        Ok(out)
    }
}

/// Splits a byte stream into frames, in whatever pieces it arrives.
#[derive(Debug)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
    limit: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::limited(MAX_FRAME)
    }
}

/// An incomplete frame; sizes in bytes after the length word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    pub length: usize,
    pub came: usize,
}

impl Decoder {
    /// Creates a decoder with a limit below [`MAX_FRAME`], in bytes after the length word.
    pub const fn limited(limit: usize) -> Self {
        Self { buffer: Vec::new(), start: 0, limit }
    }

    /// Returns the decoder with the limit [`MAX_FRAME`].
    #[must_use]
    pub fn widened(self) -> Self {
        Self { limit: MAX_FRAME, ..self }
    }

    /// Returns the incomplete frame, if one has begun.
    pub fn pending(&self) -> Option<Pending> {
        let (word, rest) = self.buffer.get(self.start..)?.split_first_chunk::<4>()?;
        Some(Pending { length: u32::from_be_bytes(*word) as usize, came: rest.len() })
    }

    /// Adds received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start > DATA_PIECE {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete frame; `None` until more bytes arrive.
    ///
    /// # Errors
    /// If a frame is too large, too short or of unknown kind; the stream cannot be used any further.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let pending = self.buffer.get(self.start..).unwrap_or_default();
        let Some((word, rest)) = pending.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*word) as usize;
        if length > self.limit {
            return Err(FrameError::TooLarge(length));
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let (kind, body) = body.split_first().ok_or(FrameError::TooShort)?;
        let frame = match kind {
            b'J' => Frame::Json(body.to_vec()),
            b'D' => {
                let (stream, bytes) = body.split_first_chunk::<4>().ok_or(FrameError::TooShort)?;
                Frame::Data { stream: u32::from_be_bytes(*stream), bytes: bytes.to_vec() }
            }
            other => return Err(FrameError::UnknownKind(*other)),
        };
        self.start += 4 + length;
        if self.start == self.buffer.len() {
            self.start = 0;
            // Large buffers are released, or a peer that once sent a large frame would keep the memory.
            match self.buffer.capacity() > 4 * DATA_PIECE {
                true => self.buffer = Vec::new(),
                false => self.buffer.clear(),
            }
        }
        Ok(Some(frame))
    }
}

/// Drops noise up to and including [`PREAMBLE`].
#[derive(Debug, Default)]
pub struct Preamble {
    noise: Vec<u8>,
}

impl Preamble {
    /// Adds received bytes. Once the preamble is complete, returns the bytes behind it.
    ///
    /// # Errors
    /// [`FrameError::TooLarge`] after [`MAX_NOISE`] bytes without a preamble.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Option<Vec<u8>>, FrameError> {
        let from = self.noise.len().saturating_sub(PREAMBLE.len());
        self.noise.extend_from_slice(bytes);
        let searched = self.noise.get(from..).unwrap_or_default();
        if let Some(at) = searched.windows(PREAMBLE.len()).position(|window| window == PREAMBLE) {
            let rest = self.noise.split_off(from + at + PREAMBLE.len());
            self.noise.truncate(from + at);
            return Ok(Some(rest));
        }
        if self.noise.len() > MAX_NOISE {
            return Err(FrameError::TooLarge(self.noise.len()));
        }
        Ok(None)
    }

    /// Returns the bytes before the preamble, or all so far: the text to show if no helper answers.
    pub fn noise(&self) -> &[u8] {
        &self.noise
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frames() -> impl Strategy<Value = Frame> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..300);
        prop_oneof![
            bytes.clone().prop_map(Frame::Json),
            (any::<u32>(), bytes).prop_map(|(stream, bytes)| Frame::Data { stream, bytes }),
        ]
    }

    proptest! {
        #[test]
        fn frames_survive_any_cut(sent in proptest::collection::vec(frames(), 0..8), cut in 1usize..50, noise in "[a-z\\n\0]{0,80}") {
            let mut wire = noise.clone().into_bytes();
            wire.extend_from_slice(PREAMBLE);
            for frame in &sent { wire.extend(frame.encode().unwrap()); }
            let (mut preamble, mut decoder, mut got, mut started) = (Preamble::default(), Decoder::default(), Vec::new(), false);
            for piece in wire.chunks(cut) {
                if started { decoder.feed(piece) } else if let Some(rest) = preamble.feed(piece).unwrap() {
                    started = true;
                    decoder.feed(&rest);
                }
                while let Some(frame) = decoder.next_frame().unwrap() { got.push(frame) }
            }
            prop_assert_eq!(preamble.noise(), noise.as_bytes());
            prop_assert_eq!(got, sent);
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let mut decoder = Decoder::default();
            decoder.feed(&bytes);
            while let Ok(Some(_)) = decoder.next_frame() {}
        }
    }

    #[test]
    fn a_huge_frame_is_refused() {
        let mut decoder = Decoder::default();
        decoder.feed(&u32::MAX.to_be_bytes());
        assert!(matches!(decoder.next_frame(), Err(FrameError::TooLarge(_))));
    }
}
