//! Where a store is: read from what a person writes, and shown without its password.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use crate::StoreError;

/// In the place of a password.
const HIDDEN: &str = "***";

/// Where a store is.
#[derive(Clone, PartialEq, Eq)]
pub struct Place(Kind);

#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite(PathBuf),
    /// With the password, if one was given.
    Postgres(String),
}

impl Place {
    /// The file of a store in SQLite.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Kind::Sqlite(path.into()))
    }

    /// Reads `sqlite:PATH` or `postgres://USER@HOST/DATABASE`.
    ///
    /// # Errors
    /// It is neither; the error has no password.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            // A URL behind `sqlite:` is a slip. Taken for a path, it would be shown with its password.
            if !path.contains("://") && !path.is_empty() && path != ":memory:" && !path.contains('\0') {
                return Ok(Self::file(path));
            }
        } else if let Some(rest) = text.strip_prefix("postgres://").or(text.strip_prefix("postgresql://"))
            && !rest.is_empty()
        {
            return Ok(Self(Kind::Postgres(format!("postgres://{rest}"))));
        }
        Err(StoreError::Url { given: redacted(text) })
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// The password of a store in PostgreSQL, as it stands in the URL.
    pub(crate) fn password(&self) -> Option<&str> {
        match &self.0 {
            Kind::Sqlite(_) => None,
            Kind::Postgres(url) => secret(url).map(|(start, end)| url.get(start..end).unwrap_or_default()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Sqlite(path) => write!(f, "{}", path.display()),
            Kind::Postgres(url) => f.write_str(&redacted(url)),
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({self})")
    }
}

/// The bytes of the password in a URL: between the first colon and the last `@` of what stands before the path.
fn secret(url: &str) -> Option<(usize, usize)> {
    let start = url.find("://").map_or(0, |at| at + 3);
    let rest = url.get(start..)?;
    // Why the last `@` of all: a password that is not encoded may hold a slash or another `@`.
    let end = rest.rfind('@')?;
    let colon = rest.get(..end)?.find(':')?;
    Some((start + colon + 1, start + end))
}

/// Returns a URL without its password, wherever in it that is.
pub fn redacted(url: &str) -> String {
    let mut text = url.to_owned();
    if let Some((start, end)) = secret(url) {
        text.replace_range(start..end, HIDDEN);
    }
    let Some((before, parameters)) = text.split_once('?') else { return text };
    let hide = |parameter: &str| match parameter.split_once('=') {
        Some((name, _)) if name.to_ascii_lowercase().contains("pass") => format!("{name}={HIDDEN}"),
        _ => parameter.to_owned(),
    };
    format!("{before}?{}", parameters.split('&').map(hide).collect::<Vec<_>>().join("&"))
}

/// The URL of a file for the driver, which decodes percent signs.
pub(crate) fn sqlite_url(path: &Path) -> std::io::Result<String> {
    let path = std::path::absolute(path)?;
    let mut url = String::from("sqlite://");
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                url.push(char::from(*byte))
            }
            other => url.push_str(&format!("%{other:02X}")),
        }
    }
    // Why not created here: it is made before, for its owner alone.
    url.push_str("?mode=rw");
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_shown_nowhere() {
        for (given, shown) in [
            ("postgres://ops:s3cret@db/fleet", "postgres://ops:***@db/fleet"),
            (
                "postgresql://ops:s3cr/et@x@db:5432/fleet?sslmode=require",
                "postgres://ops:***@db:5432/fleet?sslmode=require",
            ),
            ("postgres://db/fleet?user=ops&password=s3cret", "postgres://db/fleet?user=ops&password=***"),
            ("postgres://ops@db/fleet", "postgres://ops@db/fleet"),
            ("postgres:///fleet?host=/run/postgresql", "postgres:///fleet?host=/run/postgresql"),
        ] {
            let place = Place::parse(given).unwrap();
            assert_eq!(place.to_string(), shown);
            assert!(!format!("{place:?}").contains("s3c"), "{place:?}");
        }
        for wrong in [
            "mysql://ops:s3cret@db/fleet",
            "sqlite:postgres://ops:s3cret@db/fleet",
            "sqlite:///postgresql://ops:s3cret@db/fleet",
            "ops:s3cret@db",
            "sqlite:",
            "sqlite::memory:",
            "postgres://",
            "",
        ] {
            let error = Place::parse(wrong).unwrap_err().to_string();
            assert!(!error.contains("s3cret") && error.contains("sqlite:PATH"), "{error}");
        }
    }

    #[test]
    fn a_path_may_hold_anything() {
        assert_eq!(Place::parse("sqlite:/a b").unwrap(), Place::file("/a b"));
        assert_eq!(Place::parse("sqlite:///a").unwrap(), Place::file("/a"));
        assert_eq!(sqlite_url(Path::new("/a b?c%é#")).unwrap(), "sqlite:///a%20b%3Fc%25%C3%A9%23?mode=rw");
    }
}
