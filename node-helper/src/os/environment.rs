//! The environment of the helper, which every program that it runs inherits.
//!
//! Leftovers of a login shell or an administrator must not change what tasks do. Preloaded libraries, CUDA's selection
//! of devices and message languages are removed, and PATH gets the administrators' folders.

use std::ffi::{OsStr, OsString};

/// Folders that PATH always has, appended in this order.
const FOLDERS: &[&str] = &["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Whether a variable is kept.
fn harmless(name: &str) -> bool {
    let prefixes =
        ["LD_", "CUDA_", "NVIDIA_", "LC_", "PYTHON", "PERL", "RUBY", "MALLOC_", "BASH_FUNC_", "DYLD_"];
    let names = [
        "LANG",
        "LANGUAGE",
        "BASH_ENV",
        "ENV",
        "IFS",
        "CDPATH",
        "GCONV_PATH",
        "GLIBC_TUNABLES",
        "LOCPATH",
        "NLSPATH",
        "SHELLOPTS",
        "BASHOPTS",
        "PS4",
        "PROMPT_COMMAND",
        "POSIXLY_CORRECT",
        "SYSTEMD_PAGER",
        "SYSTEMD_COLORS",
        "OLDPWD",
        "MAIL",
    ];
    !prefixes.iter().any(|prefix| name.starts_with(prefix)) && !names.contains(&name)
}

/// Returns PATH without relative entries, with [`FOLDERS`] added.
fn path(given: Option<&str>) -> String {
    let mut folders: Vec<&str> =
        given.unwrap_or_default().split(':').filter(|folder| folder.starts_with('/')).collect();
    for folder in FOLDERS {
        if !folders.contains(folder) {
            folders.push(folder);
        }
    }
    folders.join(":")
}

/// Returns the sanitised environment.
fn sanitised(given: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let mut found = None;
    let mut kept: Vec<(OsString, OsString)> = given
        .into_iter()
        .filter(|(name, value)| {
            let Some(name) = name.to_str() else { return false };
            if name == "PATH" {
                found = value.to_str().map(str::to_owned);
            }
            name != "PATH" && harmless(name)
        })
        .collect();
    let mut set = |name: &str, value: &OsStr| kept.push((name.into(), value.to_owned()));
    set("PATH", OsStr::new(&path(found.as_deref())));
    set("LANG", OsStr::new("C.UTF-8"));
    set("LC_ALL", OsStr::new("C.UTF-8"));
    kept
}

/// Replaces the environment of this process by the sanitised one, and sets the umask to 022.
///
/// Call it only in the first lines of `main`, while no other thread exists.
#[expect(unsafe_code, reason = "the environment of a process can only be changed while it has one thread")]
pub fn sanitise() {
    let given: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let wanted = sanitised(given.clone());
    for (name, _) in given {
        if !wanted.iter().any(|(kept, _)| *kept == name) && !name.is_empty() {
            // SAFETY: `main` calls this before any other thread exists.
            unsafe { std::env::remove_var(name) };
        }
    }
    for (name, value) in wanted {
        // SAFETY: as above.
        unsafe { std::env::set_var(name, value) };
    }
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangerous_variables_go_and_the_path_is_complete() {
        let given = [
            ("LD_PRELOAD", "/evil.so"),
            ("CUDA_VISIBLE_DEVICES", "3"),
            ("LANG", "de_DE"),
            ("HOME", "/root"),
            ("PATH", "/opt/bin:.:/usr/bin"),
        ];
        let mut kept = sanitised(given.map(|(name, value)| (name.into(), value.into())));
        kept.sort();
        let kept: Vec<(String, String)> = kept
            .into_iter()
            .map(|(name, value)| (name.into_string().unwrap(), value.into_string().unwrap()))
            .collect();
        let want = [
            ("HOME", "/root"),
            ("LANG", "C.UTF-8"),
            ("LC_ALL", "C.UTF-8"),
            ("PATH", "/opt/bin:/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin"),
        ];
        assert_eq!(kept, want.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
}
