//! Which names probably stand for a secret.

/// Whether a variable or parameter of this name probably holds a secret.
///
/// Decides by its words (split at `_`, `-`, `.` and spaces): password, passphrase, token, secret, vault, key,
/// credential and their short and plural forms. The name of a file that holds a secret (`…_key_file`) is not one.
pub fn looks_secret(key: &str) -> bool {
    let key = key.to_lowercase();
    let words: Vec<&str> = key.split(['_', '-', '.', ' ']).filter(|word| !word.is_empty()).collect();
    if matches!(words.last(), Some(&("file" | "path" | "dir" | "url" | "id"))) {
        return false;
    }
    words.iter().any(|word| {
        ["password", "passwd", "passphrase", "secret", "token", "credential", "apikey", "privatekey"]
            .iter()
            .any(|part| word.contains(part))
            || matches!(*word, "pass" | "pw" | "vault" | "key" | "keys" | "pin")
    })
}
