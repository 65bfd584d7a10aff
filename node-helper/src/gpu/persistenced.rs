//! Why the unit of the persistence daemon cannot start, so that a plan says it before anything is done.
//!
//! Source: NVIDIA/nvidia-persistenced 595.71: the daemon makes its folder in /var/run and may give up root (`--user`).

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use super::clients::PERSISTENCED;

/// What is asked of systemd.
pub const ASKED: &str = "--property=LoadState,ActiveState,ExecStart,User,RuntimeDirectory";
const FOLDER: &str = "run/nvidia-persistenced";

/// Returns what keeps a unit that does not run from starting; `uid` tells the number of a user, if there is one.
pub fn fault(shown: &str, root: &Path, uid: impl Fn(&str) -> Option<u32>) -> Option<String> {
    let value = |name: &str| {
        shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).unwrap_or_default()
    };
    if value("LoadState") == "masked" {
        return Some(format!(
            "the unit {PERSISTENCED} is masked; unmask it: `systemctl unmask {PERSISTENCED}`"
        ));
    }
    if value("ActiveState") == "deactivating" {
        return Some(format!(
            "the unit {PERSISTENCED} is stopping and does not end, as where a process hangs in the driver; look at the \
             kernel's log, and reboot the node"
        ));
    }
    let command = value("ExecStart");
    let program = between(command, "path=");
    if program.starts_with('/') && !root.join(program.trim_start_matches('/')).is_file() {
        return Some(format!(
            "the unit {PERSISTENCED} starts {program}, which is not there; install the driver's package that has it"
        ));
    }
    let own = value("User");
    for user in [own, given_user(between(command, "argv[]="))].into_iter().filter(|user| !user.is_empty()) {
        if uid(user).is_none() {
            return Some(format!(
                "the unit {PERSISTENCED} wants the user {user}, whom this node does not have; create the user, or install \
                 the driver's package anew"
            ));
        }
    }
    // Only with `User=`: otherwise the daemon is root when it makes the folder.
    let user = uid(own).filter(|uid| !own.is_empty() && *uid != 0)?;
    let folder = fs::symlink_metadata(root.join(FOLDER));
    match folder {
        Ok(found) if found.is_dir() && found.uid() == user => None,
        Err(_) if !value("RuntimeDirectory").is_empty() => None,
        _ => Some(format!(
            "the unit {PERSISTENCED} runs as {own}, who cannot write /{FOLDER}; give the unit \
             `RuntimeDirectory=nvidia-persistenced`"
        )),
    }
}

/// Returns what follows a key of `{ path=… ; argv[]=… ; … }`.
fn between<'a>(text: &'a str, key: &str) -> &'a str {
    let found = text.split_once(key).map(|(_, rest)| rest.split(" ;").next().unwrap_or(rest));
    found.unwrap_or_default().trim()
}

/// Returns the user that the daemon itself is told to become.
fn given_user(arguments: &str) -> &str {
    let mut words = arguments.split_whitespace();
    while let Some(word) = words.next() {
        match word {
            "--user" | "-u" => return words.next().unwrap_or_default(),
            _ => {
                if let Some(user) = word.strip_prefix("--user=") {
                    return user;
                }
            }
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_shape_of_a_broken_unit_is_named() {
        let root = tempfile::tempdir().unwrap();
        let own = fs::metadata(root.path()).unwrap().uid();
        let uid = |user: &str| match user {
            "nvidia-persistenced" => Some(4711),
            "me" => Some(own.max(1)),
            _ => None,
        };
        let told = |more: &str, arguments: &str| {
            let path = "/usr/bin/nvidia-persistenced";
            let text = format!(
                "LoadState=loaded\nActiveState=inactive\nExecStart={{ path={path} ; argv[]={path} {arguments} ; \
                 ignore_errors=no ; pid=0 }}\n{more}"
            );
            fault(&text, root.path(), uid).unwrap_or_default()
        };
        assert!(told("", "").contains("starts /usr/bin/nvidia-persistenced, which is not there"));
        fs::create_dir_all(root.path().join("usr/bin")).unwrap();
        fs::write(root.path().join("usr/bin/nvidia-persistenced"), "").unwrap();
        assert_eq!(told("", "--verbose"), "");
        assert_eq!(told("", "--user nvidia-persistenced --no-persistence-mode"), "");
        for wrong in ["--user ghost", "--user=ghost", "-u ghost"] {
            assert!(told("", wrong).contains("wants the user ghost"), "{wrong}");
        }
        assert!(told("User=ghost\n", "").contains("wants the user ghost"));
        assert!(told("User=nvidia-persistenced\n", "").contains("cannot write /run/nvidia-persistenced"));
        assert_eq!(told("User=nvidia-persistenced\nRuntimeDirectory=nvidia-persistenced\n", ""), "");
        fs::create_dir_all(root.path().join(FOLDER)).unwrap();
        assert!(told("User=nvidia-persistenced\n", "").contains("cannot write"), "it is another user's");
        if own != 0 {
            assert_eq!(told("User=me\n", ""), "");
        }
        let of = |text: &str| fault(text, root.path(), uid).unwrap_or_default();
        assert!(of("LoadState=masked\n").contains("systemctl unmask"));
        assert!(of("LoadState=loaded\nActiveState=deactivating\n").contains("does not end"));
        assert_eq!(of(""), "", "what systemd does not tell is no fault");
    }
}
