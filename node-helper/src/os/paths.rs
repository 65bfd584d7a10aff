//! Paths as tasks give them: with `~`, with environment variables, or relative.
//!
//! Resolves them on this node as Python does for Ansible. Must not read what is at the path.

use std::path::{Path, PathBuf};

use gpufleet_protocol::NodeOp;

use super::users::{Identity, UserError, Users};

/// Returns a path fit for a shell.
pub fn quoted(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    match text.chars().all(is_plain) {
        true => text.into_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Expands `$NAME` and `${NAME}` like Python's `expandvars`: unset variables stay as they are.
pub fn expanded(text: &str, get: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    if let Some(below) = text.strip_prefix('~').filter(|below| below.is_empty() || below.starts_with('/'))
        && let Some(home) = get("HOME")
    {
        out.push_str(&home);
        rest = below;
    }
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        let braced = after.strip_prefix('{').and_then(|inner| inner.split_once('}'));
        let plain = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len());
        let (name, tail) = braced.or_else(|| after.split_at_checked(plain)).unwrap_or(("", after));
        match get(name).filter(|_| !name.is_empty()) {
            Some(value) => {
                out.push_str(&value);
                rest = tail;
            }
            None => {
                out.push('$');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

/// The user, environment and root that paths are resolved for.
pub struct Owner<'a> {
    /// The task's user; `None` is the user of the helper.
    pub user: Option<&'a Identity>,
    pub users: &'a Users,
    /// Variables that the task sets; later ones win.
    pub environment: &'a [(String, String)],
    /// Whether paths start at the root of the real node.
    pub real: bool,
}

impl Owner<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        let set =
            self.environment.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let home = || self.user.filter(|_| name == "HOME").map(|user| user.home.display().to_string());
        set.or_else(home).or_else(|| std::env::var(name).ok())
    }

    /// The folder that relative paths start from.
    fn folder(&self) -> PathBuf {
        let home = self.user.map(|user| user.home.clone()).filter(|home| home.is_dir());
        match self.real {
            true => home.or_else(|| std::env::current_dir().ok()).unwrap_or_else(|| "/".into()),
            false => self.user.map_or_else(|| "/".into(), |user| user.home.clone()),
        }
    }

    /// Returns the absolute path.
    ///
    /// # Errors
    /// If `~name` names no user.
    pub fn path(&self, path: &str) -> Result<String, UserError> {
        let name = path.strip_prefix('~').map(|rest| rest.split('/').next().unwrap_or(rest));
        let path = match name.filter(|name| !name.is_empty()) {
            Some(name) => {
                let home = self.users.identity(name)?.home;
                format!("{}{}", home.display(), path.get(name.len() + 1..).unwrap_or_default())
            }
            None => path.to_owned(),
        };
        let path = expanded(&path, &|name| self.variable(name));
        if path.starts_with('/') {
            return Ok(path);
        }
        let below = path.strip_prefix("./").unwrap_or(&path);
        let folder = self.folder().display().to_string();
        Ok(match below {
            "." | "" => folder,
            below => format!("{}/{below}", folder.trim_end_matches('/')),
        })
    }

    /// Returns the operation with absolute paths; `None` if they are absolute already.
    ///
    /// # Errors
    /// If a `~name` names no user.
    pub fn settled(&self, op: &NodeOp) -> Result<Option<NodeOp>, UserError> {
        let open = |path: &str| !path.starts_with('/') || path.contains('$');
        // Checked before cloning, because an operation may be large, such as a tree of files, and few have such a path.
        if !op.operation().paths().into_iter().any(|path| open(path)) {
            return Ok(None);
        }
        let mut own = op.clone();
        for path in own.operation_mut().paths_mut().into_iter().filter(|path| open(path)) {
            *path = self.path(path)?;
        }
        Ok(Some(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::testing::Bench;

    #[test]
    fn paths_mean_what_they_mean_to_ansible() {
        let bench = Bench::new();
        bench.write("etc/passwd", "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n");
        bench.write("etc/group", "root:x:0:\nann:x:1000:\n");
        let users = Users::of(&bench.path("etc"));
        let ann = users.identity("ann").unwrap();
        let environment = [("APP".to_owned(), "/opt/app".to_owned())];
        let of = |user, path: &str| {
            Owner { user, users: &users, environment: &environment, real: false }.path(path)
        };
        for (path, wanted) in [
            ("/etc/a", "/etc/a"),
            ("/etc/$APP/${NOBODY_SETS_THIS}", "/etc//opt/app/${NOBODY_SETS_THIS}"),
            ("$APP/conf", "/opt/app/conf"),
            ("~/.kube/config", "/home/ann/.kube/config"),
            ("$HOME/.kube", "/home/ann/.kube"),
            ("~root/x/", "/root/x/"),
            ("~root", "/root"),
            ("a.yaml", "/home/ann/a.yaml"),
            ("./a", "/home/ann/a"),
            (".", "/home/ann"),
        ] {
            assert_eq!(of(Some(&ann), path).unwrap(), wanted, "{path}");
        }
        assert_eq!(of(None, "a").unwrap(), "/a");
        assert_eq!(
            of(None, "~nobody-here/a").unwrap_err().to_string(),
            "there is no user `nobody-here` on this node"
        );
        let file =
            |path: &str| NodeOp::Slurp(serde_json::from_value(serde_json::json!({"src": path})).unwrap());
        let owner = Owner { user: Some(&ann), users: &users, environment: &[], real: false };
        assert_eq!(owner.settled(&file("/etc/a")).unwrap(), None);
        assert_eq!(owner.settled(&file("~/a")).unwrap(), Some(file("/home/ann/a")));
    }
}
