//! Names of checksums.

use super::words::words;

words! {
    /// How the checksum of a file is computed.
    #[derive(Default)]
    ChecksumAlgorithm {
        #[default]
        Sha1: "sha1" | "sha",
        Md5: "md5",
        Sha224: "sha224",
        Sha256: "sha256",
        Sha384: "sha384",
        Sha512: "sha512",
    }
}

impl ChecksumAlgorithm {
    /// Number of hexadecimal digits of the checksum.
    pub const fn digits(self) -> usize {
        match self {
            Self::Md5 => 32,
            Self::Sha1 => 40,
            Self::Sha224 => 56,
            Self::Sha256 => 64,
            Self::Sha384 => 96,
            Self::Sha512 => 128,
        }
    }
}
