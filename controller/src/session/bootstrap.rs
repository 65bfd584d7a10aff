//! The command that starts the helper on a node, and its output until the helper takes over.
//!
//! Pure. The command must reach `sh` unchanged through bash, dash, zsh, csh, tcsh and fish, so it is one line in
//! single quotes without quotes, backslashes and exclamation marks.
//!
//! An existing file is run only if the node's own `sha256sum`, `openssl` or `shasum` has confirmed its digest,
//! because a running program's own word proves nothing. A node with none of these tools gets the file anew each time.
//!
//! Owner and size are checked first, so that only a file that may be gpufleet's is read. After a correct digest,
//! inode, owner, mode, size and the kernel's times are kept in a record that only its owner can write: hashing the
//! whole file at every start would cost each node tens of milliseconds. If any of them differs, the record is
//! ignored.

use std::fmt::Write as _;

use super::node_file::NodeFiles;
use crate::transport::Become;

const BOOTSTRAP: &str = include_str!("bootstrap.sh");
const BECOME: &str = include_str!("become.sh");

/// Joins a script into one line.
fn one_line(script: &str) -> String {
    let lines = script.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.collect::<Vec<_>>().join(" ")
}

/// Returns a new word that marks gpufleet's lines in the output of login shells.
pub(super) fn fresh_tag() -> String {
    format!("gpufleet-{}", uuid::Uuid::new_v4().simple())
}

/// Returns the prompt that sudo uses.
pub(super) fn password_prompt(tag: &str) -> String {
    format!("{tag}-password:")
}

/// Returns the command for the login shell.
pub(super) fn command(
    tag: &str,
    files: &NodeFiles,
    anew: bool,
    privilege: Option<&Become>,
    words: &str,
) -> String {
    let bootstrap = one_line(BOOTSTRAP);
    let list = files.list();
    let anew = u8::from(anew);
    match privilege {
        None => format!("exec sh -c '{bootstrap}' gpufleet {tag} '{list}' {anew} '{words}'"),
        Some(privilege) => {
            let mode = if privilege.password.is_some() { "p" } else { "n" };
            format!(
                "exec sh -c '{}' gpufleet '{bootstrap}' {tag} '{list}' {anew} '{}' {mode} '{words}'",
                one_line(BECOME),
                privilege.user
            )
        }
    }
}

/// Returns the arguments of a helper on the controller: the host that it acts for.
pub(super) fn local_words(name: &str) -> String {
    format!("--local {}", percent(name))
}

/// Encodes a text as one word that no shell changes; the helper decodes it.
fn percent(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"/._-".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02x}");
        }
    }
    out
}

/// Whether a user's name can be passed to sudo through any shell.
pub(super) fn is_plain_user(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('-')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-@$#+".contains(c))
        && !name.contains('$')
}

/// A line of the bootstrap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// uid of the login user, before sudo.
    Login(u32),
    /// An existing file is being run.
    Run,
    /// The file for this architecture must be sent, packed with gzip if the node can unpack it.
    Need {
        architecture: String,
        packed: bool,
    },
    Fail {
        kind: String,
        detail: String,
    },
}

/// Finds gpufleet's lines in the output of a login shell, in whatever pieces it arrives.
#[derive(Debug)]
pub(super) struct Words {
    tag: String,
    scanned: usize,
}

impl Words {
    pub(super) fn new(tag: &str) -> Self {
        Self { tag: tag.to_owned(), scanned: 0 }
    }

    /// Returns complete lines that were not returned before; `noise` is all output so far.
    pub(super) fn scan(&mut self, noise: &[u8]) -> Vec<Word> {
        let mut words = Vec::new();
        while let Some(rest) = noise.get(self.scanned..) {
            let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { break };
            let line = String::from_utf8_lossy(rest.get(..end).unwrap_or_default()).into_owned();
            self.scanned += end + 1;
            if let Some((_, text)) = line.split_once(&format!("{} ", self.tag)) {
                words.extend(parse(text.trim_end()));
            }
        }
        words
    }
}

fn parse(text: &str) -> Option<Word> {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    match word {
        "login" => rest.parse().ok().map(Word::Login),
        "run" => Some(Word::Run),
        "need" => rest.split_once(' ').map(|(architecture, form)| Word::Need {
            architecture: architecture.to_owned(),
            packed: form == "gzip",
        }),
        "fail" => {
            let (kind, detail) = rest.split_once(' ').unwrap_or((rest, ""));
            Some(Word::Fail { kind: kind.to_owned(), detail: detail.trim().to_owned() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use secrecy::SecretString;

    use super::*;

    #[test]
    fn the_command_survives_every_login_shell() {
        let files = NodeFiles::new(Vec::new());
        let privilege = Become { user: "root".to_owned(), password: Some(SecretString::from("hunter2")) };
        for command in [
            command("tag", &files, false, None, &local_words("n 1'$(x)!")),
            command("tag", &files, true, Some(&privilege), ""),
        ] {
            assert!(!command.contains(['\\', '!', '\n', '\t']), "{command}");
            assert!(!command.contains("hunter2"));
        }
        assert!(!one_line(BOOTSTRAP).contains('\''));
        assert!(!one_line(BECOME).contains('\''));
    }

    #[test]
    fn odd_users_are_refused() {
        assert!(is_plain_user("svc_gpu-1.x"));
        for name in ["", "-u", "a b", "a'b", "$(id)", "a;b"] {
            assert!(!is_plain_user(name), "{name}");
        }
    }

    #[test]
    fn our_lines_are_found_in_noise() {
        let mut words = Words::new("T");
        let noise = b"Welcome!\nno newline hereT login 1000\nother T-password: x\nT need x86_64 gzip\nT fail place /a:noexec /b:full\nT ru";
        assert_eq!(
            words.scan(noise),
            [
                Word::Login(1000),
                Word::Need { architecture: "x86_64".to_owned(), packed: true },
                Word::Fail { kind: "place".to_owned(), detail: "/a:noexec /b:full".to_owned() },
            ]
        );
        let mut noise = noise.to_vec();
        noise.extend_from_slice(b"n\n");
        assert_eq!(words.scan(&noise), [Word::Run]);
    }

    proptest! {
        #[test]
        fn any_cut_finds_the_same_words(noise in "[a-zT\n ]{0,200}", cut in 1usize..20) {
            let whole = Words::new("T").scan(noise.as_bytes());
            let mut words = Words::new("T");
            let mut pieces = Vec::new();
            for end in (0..noise.len()).step_by(cut).chain([noise.len()]) {
                pieces.extend(words.scan(&noise.as_bytes()[..end]));
            }
            prop_assert_eq!(whole, pieces);
        }
    }
}
