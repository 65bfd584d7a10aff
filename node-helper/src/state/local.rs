//! The host name that the controller's own machine is used under, as the bootstrap passes it.

/// Longest name that every file system accepts for a folder.
const LONGEST: usize = 200;

/// Checks a host's name for use as a folder's name. Odd bytes arrive as `%` and two hexadecimal digits, and stay so.
///
/// # Errors
/// If the name is empty or too long.
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
