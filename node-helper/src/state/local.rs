//! The name of the host that the controller's own machine stands for, as the bootstrap hands it over.

/// Longest name that is a folder's on every file system.
const LONGEST: usize = 200;

/// The name of a folder for a host. Odd bytes come as `%` and two hexadecimal digits and stay so.
///
/// # Errors
/// An empty or far too long name.
pub fn name(word: &str) -> Result<String, String> {
    if word.is_empty() || word.len() > LONGEST {
        return Err(format!("`{word}` is no name of a host"));
    }
    let word = word.replace('/', "%2f");
    Ok(match word.strip_prefix('.') {
        Some(rest) => format!("%2e{rest}"),
        None => word,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_folder() {
        assert_eq!(name("n-1.x").unwrap(), "n-1.x");
        assert_eq!(name("../../etc").unwrap(), "%2e.%2f..%2fetc");
        assert!(name("").is_err());
        assert!(name(&"x".repeat(300)).is_err());
    }
}
