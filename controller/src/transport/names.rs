//! Names of hosts and users that are safe in a command line, however it is built.
//!
//! Pure. Both types can only be created by their check, and all code that connects accepts nothing else. So what a
//! `ProxyCommand`, a path with `%` tokens or the OpenSSH client gets cannot change a command.
//!
//! Hosts have a list of allowed characters instead of OpenSSH's list of forbidden ones: `[`, `*` and `~` do no harm
//! in OpenSSH, but a shell expands them. Users follow OpenSSH's rules, without blanks, patterns, and `$` except at
//! the end.

use std::{fmt, ops::Deref};

/// Longest name in bytes; longer than any DNS name and any address with a zone.
const LONGEST: usize = 255;
/// Number of characters of an invalid name that a message shows.
const SHOWN: usize = 60;

/// Why a text is not a valid name: what was found, shortened and without control characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{shown}` is no {what}: {why}")]
pub struct NameError {
    shown: String,
    what: &'static str,
    why: String,
}

impl NameError {
    fn new(text: &str, what: &'static str, why: impl Into<String>) -> Self {
        let mut shown: String = text.chars().take(SHOWN).flat_map(visible).collect();
        if text.chars().nth(SHOWN).is_some() {
            shown.push('…');
        }
        Self { shown, what, why: why.into() }
    }
}

/// Returns a character as a message may show it; control characters are escaped.
fn visible(c: char) -> impl Iterator<Item = char> {
    let escaped = if c.is_ascii_graphic() || c == ' ' || c.is_alphanumeric() { None } else { Some(c) };
    let plain = escaped.is_none().then_some(c);
    escaped.into_iter().flat_map(char::escape_unicode).chain(plain)
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $check:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            /// Checks a text and takes it over.
            ///
            /// # Errors
            /// Why it is invalid.
            pub fn check(text: impl Into<String>) -> Result<Self, NameError> {
                let text = text.into();
                $check(&text)?;
                Ok(Self(text))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

name! {
    /// The name or address of a host, or an alias of `ssh_config`.
    HostName, host
}

name! {
    /// A user to log in as.
    UserName, user
}

fn host(text: &str) -> Result<(), NameError> {
    let error = |why: String| Err(NameError::new(text, "host name or address", why));
    first(text, "host name or address", &['-'])?;
    // `%` begins the zone of an IPv6 address; elsewhere it is a token.
    let is_ipv6 = text.contains(':');
    let odd = |c: char| !(c.is_alphanumeric() || "._-:@+".contains(c) || c == '%' && is_ipv6);
    match text.chars().find(|c| odd(*c)) {
        Some(c) => error(format!("{} cannot stand in one", named(c))),
        None => Ok(()),
    }
}

fn user(text: &str) -> Result<(), NameError> {
    let error = |why: String| Err(NameError::new(text, "user", why));
    first(text, "user", &['-', '~', '#'])?;
    let odd = |c: char| c.is_control() || c.is_whitespace() || "'`\";&<>|(){}[]*?!".contains(c);
    if let Some(c) = text.chars().find(|c| odd(*c)) {
        return error(format!("{} cannot stand in one", named(c)));
    }
    // Machine accounts end with `$`, and there no variable's name follows for a shell.
    match text.find('$') {
        Some(at) if at + 1 < text.len() => return error("`$` can only be its last character".to_owned()),
        _ => {}
    }
    if text.ends_with('\\') {
        return error("`\\` cannot be its last character".to_owned());
    }
    Ok(())
}

/// Checks the name of a host in the inventory, which need not be an address but is used in commands and paths.
///
/// # Errors
/// Why it is invalid.
pub(super) fn check_label(text: &str) -> Result<(), NameError> {
    let error = |why: String| Err(NameError::new(text, "name of a host", why));
    first(text, "name of a host", &['-'])?;
    if text.split('/').any(|part| part == "..") {
        return error("it leads out of the folders that are named after hosts".to_owned());
    }
    let odd = |c: char| c.is_control() || c.is_whitespace() || "'`\"$\\;&<>|(){}[]*?!,".contains(c);
    match text.chars().find(|c| odd(*c)) {
        Some(c) => error(format!("{} cannot stand in one", named(c))),
        None => Ok(()),
    }
}

fn first(text: &str, what: &'static str, bad: &[char]) -> Result<(), NameError> {
    let error = |why: String| Err(NameError::new(text, what, why));
    match text.chars().next() {
        None => error("it is empty".to_owned()),
        Some(c) if bad.contains(&c) => error(format!("{} cannot be its first character", named(c))),
        Some(_) if text.len() > LONGEST => error(format!("it is longer than {LONGEST} bytes")),
        Some(_) => Ok(()),
    }
}

fn named(c: char) -> String {
    match c {
        ' ' => "a blank".to_owned(),
        '`' => "a backtick".to_owned(),
        '\n' | '\r' => "a line break".to_owned(),
        c if c.is_whitespace() || c.is_control() => format!("the character U+{:04X}", u32::from(c)),
        c => format!("`{}`", visible(c).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_people_use_are_names() {
        for text in [
            "gpu001",
            "gpu-001.example.com",
            "10.0.0.1",
            "fe80::1",
            "fe80::1%eth0",
            "_gw",
            "ñandú",
            "a_b",
            "::1",
            "ops@gpu1",
            "c++1",
        ] {
            assert_eq!(HostName::check(text).unwrap().as_str(), text);
        }
        for text in
            ["root", "ops.team", r"DOMAIN\ops", "GPU001$", "a@b", "u%node", "root@t@bastion:22", "a+b", "ß"]
        {
            assert_eq!(UserName::check(text).unwrap().as_str(), text);
        }
        for text in ["gpu001", "/srv/chroot", "rack1:gpu1", "a=b", "fe80::1%eth0"] {
            assert_eq!(check_label(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn what_is_no_name_is_told_why() {
        let host = |text: &str| HostName::check(text).unwrap_err().to_string();
        let user = |text: &str| UserName::check(text).unwrap_err().to_string();
        assert_eq!(
            host("$(touch${IFS}/x)"),
            "`$(touch${IFS}/x)` is no host name or address: `$` cannot stand in one"
        );
        assert_eq!(
            host("-oProxyCommand=x"),
            "`-oProxyCommand=x` is no host name or address: `-` cannot be its first character"
        );
        assert_eq!(host("a b"), "`a b` is no host name or address: a blank cannot stand in one");
        assert_eq!(
            host("a\u{1b}[2J"),
            r"`a\u{1b}[2J` is no host name or address: the character U+001B cannot stand in one"
        );
        assert_eq!(host(""), "`` is no host name or address: it is empty");
        assert_eq!(host("a%h"), "`a%h` is no host name or address: `%` cannot stand in one");
        assert!(
            host(&"a".repeat(300)).ends_with("…` is no host name or address: it is longer than 255 bytes")
        );
        assert_eq!(user("a$IFS-oX"), "`a$IFS-oX` is no user: `$` can only be its last character");
        assert_eq!(
            user("a\\"),
            r"`a\u{5c}` is no user: `\` cannot be its last character".replace("\\u{5c}", "\\")
        );
        assert_eq!(user("a`id`"), "`a`id`` is no user: a backtick cannot stand in one");
        assert_eq!(
            check_label("../../etc").unwrap_err().to_string(),
            "`../../etc` is no name of a host: it leads out of the folders that are named after hosts"
        );
    }

    /// Returns the words that a real shell makes of a line in which the text is not quoted.
    fn words(text: &str) -> Vec<String> {
        let line = format!("printf '%s\\0' begin {text} {text}:22 x{text}");
        let output = std::process::Command::new("/bin/sh").arg("-c").arg(line).env_clear().output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{text}: {output:?}");
        let mut words: Vec<String> = output
            .stdout
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        assert_eq!((words.remove(0).as_str(), words.pop().as_deref()), ("begin", Some("")));
        words
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn a_shell_takes_a_host_as_it_is(text in r#"[a-z0-9._:%@+~^=/\\$`'"(){}\[\]<>|&;*?!# \n\t-]{1,8}"#) {
            if HostName::check(text.as_str()).is_ok() {
                prop_assert_eq!(words(&text), [text.clone(), format!("{text}:22"), format!("x{text}")]);
            }
        }

        #[test]
        fn a_shell_takes_a_user_as_one_word(text in r#"[a-z0-9._:%@+~^=/\\$`'"(){}\[\]<>|&;*?!# \n\t-]{1,8}"#) {
            if let Ok(user) = UserName::check(text.as_str()) {
                let words = words(&user);
                prop_assert_eq!(words.len(), 3);
                prop_assert!(!words[0].starts_with('-'), "{:?}", words);
            }
        }

        /// OpenSSH's own rule (`ssh_valid_hostname`) accepts everything that is accepted here.
        #[test]
        fn openssh_would_take_it(text in ".{0,12}") {
            if HostName::check(text.as_str()).is_ok() {
                let bad = |c: char| "'`\"$\\;&<>|(){},".contains(c) || c.is_ascii_whitespace() || c.is_ascii_control();
                prop_assert!(!text.starts_with('-') && !text.contains(bad), "{text}");
            }
        }

        #[test]
        fn messages_hold_no_control_characters(text in any::<String>()) {
            for error in [HostName::check(text.as_str()).err(), UserName::check(text.as_str()).err()].into_iter().flatten() {
                prop_assert!(!error.to_string().contains(|c: char| c.is_control()), "{error:?}");
            }
        }
    }
}
